"""The machines that `runs-on` asks for, and what a Linux host can stand in for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ci_tasks.config import HostSpec
from ci_tasks.errors import WorkflowError
from ci_tasks.records import Deviation
from ci_tasks.workflow.expressions import shown, unknowns
from ci_tasks.workflow.model import Job, Row
from ci_tasks.workflow.resolve import Resolver

# Labels of GitHub's own runners, such as macos-14, and the ones that every self-hosted runner has.
_OTHER_SYSTEM = re.compile(r"(windows|macos)(-.*)?", re.IGNORECASE)
_ARM = re.compile(r"(.*[-_.])?(arm|arm64|aarch64)([-_.].*)?", re.IGNORECASE)


def check_runner(job: Job, resolve: Resolver) -> None:
    """Raises WorkflowError for a job of another operating system."""
    for label in _labels(job, resolve):
        if _OTHER_SYSTEM.fullmatch(label):
            raise WorkflowError(
                f"runs on {label}; only Linux jobs can be run",
                file=resolve.file,
                job=job.id,
                line=getattr(job.runs_on, "line", 0) or job.line,
                text=f"runs-on: {job.runs_on}",
            )


def architecture(job: Job, resolve: Resolver) -> str:
    """As `runner.arch` has it."""
    return "ARM64" if any(_ARM.fullmatch(label) for label in _labels(job, resolve)) else "X64"


def runner_deviations(job: Job, row: Row, host: HostSpec, resolve: Resolver) -> Iterator[Deviation]:
    labels = ", ".join(_labels(job, resolve))
    if list(unknowns(resolve.value(job.runs_on))):
        yield Deviation("machine", labels, f"host {host.name}", "only GitHub knows the runner")
    elif row.runner == "github-hosted":
        yield Deviation("machine", "GitHub's runner", f"host {host.name}", "CI's packages may be missing here")
    if architecture(job, resolve) == "ARM64":
        yield Deviation("architecture", f"ARM64 ({labels})", f"that of host {host.name}", "the host was asked for")


def _labels(job: Job, resolve: Resolver) -> list[str]:
    runs_on: Any = resolve.value(job.runs_on)
    labels = runs_on.get("labels") if isinstance(runs_on, Mapping) else runs_on
    return [shown(label) for label in (labels if isinstance(labels, list) else [labels]) if label is not None]
