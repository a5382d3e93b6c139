"""A matrix that another job's output gives: run that job's own steps here, and read what they wrote.

That is how slime's `run-ci-changed` finds its rows. The job runs as any row does, in a clone whose HEAD is the working
tree and whose `origin/main` is the base, so the script sees uncommitted files too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.errors import CiTasksError, WorkflowError
from ci_tasks.flows.source import Source
from ci_tasks.model import Checkout, Deviation, HostSpec, Job, Row
from ci_tasks.plan.planner import Place, make_plan
from ci_tasks.runner.layout import RunDir
from ci_tasks.suites import slime
from ci_tasks.sync.git import Git
from ci_tasks.sync.snapshot import BASE, materialize, resolve_base
from ci_tasks.workflow import rows
from ci_tasks.workflow.changed import PATTERNS, changed_matrix
from ci_tasks.workflow.context import Situation
from ci_tasks.workflow.naming import label_of, means
from ci_tasks.workflow.outputs import parse_outputs

_HERE = HostSpec(name="local", runtime="none", timeout_minutes=5)


@dataclass(frozen=True)
class Found:
    """The rows of a job, its job as planned, and what had to be done otherwise than in CI to find them."""

    job: Job
    rows: list[Row]
    situation: Situation
    deviations: tuple[Deviation, ...] = ()


def find_rows(source: Source, label: str, known: Situation, base: str | None) -> Found:
    """The rows of `label`, other jobs' outputs included. Raises UnknownName, WorkflowError, CheckoutError."""
    changed_by_rule = label == slime.CHANGED and not _has_label(source, label)
    job = _template_job(source, known) if changed_by_rule else slime.job_of(source.workflow, label)
    missing = [] if changed_by_rule else rows.missing_outputs(job, known)
    if not missing and not changed_by_rule:
        return Found(job, rows.rows(source.workflow, job, known, slime.describe), known)
    with _clone(source, base) as (workspace, checkout):
        if changed_by_rule:
            return _by_rule(source, job, known, workspace, "the workflow has no job for changed tests")
        try:
            for name in missing:
                outputs = _run_job(source, source.workflow.jobs[name], known, workspace, checkout)
                known = replace(known, outputs={**known.outputs, name: outputs})
        except _JobFailed as failure:
            if label_of(job.id) != slime.CHANGED:
                raise
            return _by_rule(source, job, known, workspace, failure.message)
    if not rows.resolver(source.workflow, job, _any_row(job), known).condition(job.condition):
        return Found(job, [], known)
    return Found(job, rows.rows(source.workflow, job, known, slime.describe), known)


class _JobFailed(CiTasksError):
    pass


def _has_label(source: Source, label: str) -> bool:
    return any(means(label, name) for name in source.workflow.jobs)


@contextmanager
def _clone(source: Source, base: str | None) -> Iterator[tuple[Path, Checkout]]:
    if not source.sample:
        resolve_base(source.path, base or BASE)
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        workspace = Path(scratch) / "workspace"
        yield workspace, materialize(source.path, workspace, rev=source.rev, base=base)


def _run_job(source: Source, job: Job, known: Situation, workspace: Path, checkout: Checkout) -> dict[str, str]:
    """The job's outputs, after its steps have run in `workspace`."""
    if job.container or job.uses or any(step.run and "docker" in step.run for step in job.steps):
        raise WorkflowError(
            "its output decides the rows, and it cannot be run here",
            file=source.workflow.path,
            job=job.id,
            line=job.line,
        )
    from ci_tasks.hosts import local, python  # most labels' rows need no job to be run here

    run = RunDir(str(workspace.parent / "run"))
    here = replace(known, workspace=str(workspace), sha=checkout.commit)
    row = rows.rows(source.workflow, job, here, slime.describe)[0]
    place = Place("detect", run.path, str(workspace), checkout, python.find(""), str(workspace.parent), "")
    plan = replace(make_plan(source.workflow, job, row, _HERE, here, (), place).plan, owned=())
    local.write_run_dir(run, plan)
    code = local.complete(run)
    if code != 0:
        said = Path(run.log).read_text(errors="replace").strip().splitlines() if Path(run.log).exists() else []
        raise _JobFailed(f"job {job.id}, whose output decides the rows, ends with {code}: {said[-1] if said else ''}")
    resolve = rows.resolver(source.workflow, job, row, here)
    resolve.contexts["steps"] = {step.id: {"outputs": _outputs(run, step.id)} for step in job.steps if step.id}
    return resolve.strings(job.outputs)


def _outputs(run: RunDir, step: str) -> dict[str, str]:
    file = Path(run.outputs, step)
    return parse_outputs(file.read_text(encoding="utf-8", errors="replace")) if file.exists() else {}


def _by_rule(source: Source, job: Job, known: Situation, workspace: Path, why: str) -> Found:
    """CI's rule for changed tests, by our own hand."""
    names = Git(workspace).names("diff", "--name-only", "-z", "--diff-filter=AM", f"{BASE}...HEAD", "--", *PATTERNS)
    files = {name: (workspace / name).read_text(encoding="utf-8", errors="replace") for name in names}
    planned = replace(job, id="e2e-test-changed", condition=None, needs=(), matrix=changed_matrix(files))
    found = rows.rows(source.workflow, planned, known, slime.describe)
    note = Deviation("changed tests", "the workflow's own detection", "the same rule, applied by ci-tasks", why)
    return Found(planned, found, known, (note,))


def _template_job(source: Source, known: Situation) -> Job:
    """A job that runs a test file given by its matrix: what a job for changed tests would look like."""
    for job in source.workflow.jobs.values():
        if not rows.missing_outputs(job, known):
            found = rows.rows(source.workflow, job, known, slime.describe)
            if found and found[0].test and found[0].gpus:
                return job
    return slime.job_of(source.workflow, slime.CHANGED)


def _any_row(job: Job) -> Row:
    return Row(label_of(job.id), job.id, None, "", None, "", None, None, {}, "self-hosted", None)
