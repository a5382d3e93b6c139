"""What of the machine that `runs-on` asks for a Linux host stands in for, and what it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ci_tasks.config import HostSpec
from ci_tasks.errors import WorkflowError
from ci_tasks.records import Deviation
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.resolve import Resolver
from ci_tasks.workflow.runner import labels
from ci_tasks.workflow.values import unknowns

_ARM = re.compile(r"(.*[-_.])?(arm|arm64|aarch64)([-_.].*)?", re.IGNORECASE)


def check_runner(workflow: Workflow, job: Job, row: Row) -> None:
    """Raises WorkflowError for a row whose machine has no equivalent here, or whose number of GPUs is not known."""
    message, hint = row.refused, ""
    if message is None and row.gpus is None:
        message = "the workflow does not say how many GPUs the row takes"
        hint = "give the number that CI's runner gives it: --gpus N (0 for none)"
    if message is not None:
        line = getattr(job.runs_on, "line", 0) or job.line
        text = f"runs-on: {job.runs_on}"
        raise WorkflowError(message, file=workflow.place, job=job.id, line=line, text=text, hint=hint)


def architecture(job: Job, resolve: Resolver) -> str:
    """As `runner.arch` has it."""
    return "ARM64" if any(_ARM.fullmatch(label) for label in labels(job, resolve)) else "X64"


def runner_deviations(job: Job, row: Row, host: HostSpec, resolve: Resolver) -> Iterator[Deviation]:
    names = ", ".join(labels(job, resolve))
    if list(unknowns(resolve.value(job.runs_on))):
        yield Deviation("machine", names, f"host {host.name}", "only GitHub knows the runner")
    elif row.runner == "github-hosted":
        yield Deviation("machine", "GitHub's runner", f"host {host.name}", "CI's packages may be missing here")
    if architecture(job, resolve) == "ARM64":
        yield Deviation("architecture", f"ARM64 ({names})", f"that of host {host.name}", "the host was asked for")
    if row.gpus_given:
        yield Deviation("GPU count", "not in the workflow", str(row.gpus), "--gpus")
