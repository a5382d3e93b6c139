"""The rows of a label. A matrix that another job's output gives is found by running that job's own steps here.

That is how slime's `run-ci-changed` finds its rows. The job runs as any row does, in a clone whose HEAD is the working
tree and whose `origin/main` is the base, so the script sees uncommitted files too. Where it is not to run, CI's rule
for changed tests is read and applied by ourselves.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import BASE, default_base, find_commit, open_repository, resolve_rev
from ci_tasks.errors import CheckoutError, CiTasksError, WorkflowError, counted, some
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.steps import overridden
from ci_tasks.run.checkout_source import CheckoutSource, event_context, find_checkout, read_source, workflow_files
from ci_tasks.workflow import expressions, rows, secrets
from ci_tasks.workflow.context import EventContext, UnknownValueError, how_to_give
from ci_tasks.workflow.model import Job, Row
from ci_tasks.workflow.rows import LabelStart, label_starts
from ci_tasks.workflow.suite import label_of, matches_job

if TYPE_CHECKING:
    from ci_tasks.agent.records import Checkout, Deviation
    from ci_tasks.workflow.suite import ChangedTests

_LARGEST_ARTIFACT = 2 << 20  # bytes in base64, which are part of run.sh
_DOCKER = re.compile(r"^\s*(?:sudo\s+)?docker\s", re.MULTILINE)


@dataclass(frozen=True)
class JobRows:
    """The rows of a job, its job as planned, and what had to be done otherwise than in CI to find them."""

    job: Job
    rows: list[Row]
    context: EventContext
    deviations: tuple[Deviation, ...] = ()


# -- `jobs` ------------------------------------------------------------------------------------------------------------


def list_jobs(
    source: CheckoutSource, label: str | None = None, base: str | None = None, *, run_needs: bool = False
) -> list[Row]:
    """Every row of the checkout's workflow, or of one label. With `run_needs`, jobs whose outputs decide a matrix run
    here; otherwise its row says `dynamic`, unless only the label of changed tests is asked for, and nothing of the
    checkout is executed."""
    event = event_context(source, secrets=source.workflow.secrets)
    if head := find_commit(source.path, source.rev or "HEAD"):
        event = replace(event, sha=head)
    if label is not None:
        source.job_of(label)
    is_found = run_needs or (label is not None and source.suite.is_changed(label))
    listed: list[Row] = []
    for job in source.workflow.labelled:
        if label is not None and not matches_job(label, job.id):
            continue
        try:
            if is_found and rows.missing_outputs(job, event):
                found = find_rows(source, label_of(job.id), event, base, run_needs=run_needs)
                listed += found.rows
                event = replace(event, outputs=found.context.outputs, artifacts=found.context.artifacts)
            else:
                listed += rows.rows(source.workflow, job, event, source.suite.describe)
        except CiTasksError as error:
            if label is not None:
                raise
            listed.append(rows.refused_row(job, str(error).splitlines()[0]))  # it hides no others
    return [replace(row, env={name: secrets.shown(value) for name, value in row.env.items()}) for row in listed]


def why_no_rows(source: CheckoutSource, label: str, base: str | None) -> str:
    """Why `label` has none."""
    why = "its `if:` is false for a pull request, or its matrix is empty"
    if source.given.outputs:
        why = "with these outputs its `if:` is false, or its matrix is empty"
    elif source.suite.is_changed(label):
        why = f"no test file is new or modified since {base or BASE} (--base REV names another)"
    return f"label {label} has no row: {why}"


# -- the rows of one label ---------------------------------------------------------------------------------------------


def find_rows(
    source: CheckoutSource, label: str, event: EventContext, base: str | None, *, run_needs: bool = True
) -> JobRows:
    """The rows of `label`. Jobs whose outputs decide them are run here, unless `run_needs` is off: then it is an error,
    but of changed tests, for which CI's rule is read. Raises UnknownName, WorkflowError, CheckoutError."""
    changed = source.suite.changed if source.suite.is_changed(label) else None
    job = source.job_of(label)
    here = overridden(job, source.suite_overrides)
    needed = rows.needed_outputs(source.workflow, here, event) if run_needs else {}
    missing = {id: names for id, names in needed.items() if _runs_here(source, id)} or rows.missing_outputs(job, event)
    if not missing:
        return JobRows(job, _rows(source, job, event), event)
    if not run_needs and not changed:
        raise _undecided(source, job, event)
    if run_needs:  # a large checkout takes its time
        print(f"ci-tasks: running {', '.join(missing)} here for outputs", file=sys.stderr, flush=True)
    with _clone(source, base) as (workspace, checkout):
        event = replace(event, base_sha=find_commit(workspace, BASE) or "")
        files = _changed_tests(source, changed, workspace) if changed else {}
        if changed and not run_needs:
            return _by_rule(source, job, event, changed.matrix(files))
        others = [name for id, names in needed.items() if id not in missing for name in names]
        for id, names in missing.items():
            try:
                event = _with_outputs(source, id, event, workspace, checkout)
            except CiTasksError as error:  # all that a person has to give, at once
                unknown = error.names if isinstance(error, UnknownValueError) else ()
                outputs = names or [f"needs.{id}.outputs.{name}" for name in source.workflow.jobs[id].outputs]
                if unknown or not error.hint:
                    error.hint = how_to_give([*(unknown if error.hint else outputs), *others])
                raise
    runs = rows.row_resolver(source.workflow, job, rows.blank_row(job), event).decide(job.condition) is not False
    return JobRows(job, _rows(source, job, event) if runs else [], event)


def _runs_here(source: CheckoutSource, id: str) -> bool:
    """Whether the job, or the jobs that it calls, can be run only to know their outputs."""
    job = source.workflow.jobs.get(id)
    return job is not None and (job.calls or job.is_labelled) and not _why_not_here(job)


def _with_outputs(
    source: CheckoutSource, id: str, event: EventContext, workspace: Path, checkout: Checkout
) -> EventContext:
    """The event that knows the outputs of the job, and of the jobs that it needs for them."""
    if id in event.outputs:
        return event
    workflow, job = source.workflow, source.workflow.jobs[id]
    called = {each.own_id: each for each in workflow.jobs.values() if each.call and each.call.caller.id == id}
    if not called:
        for other in rows.needed_outputs(workflow, overridden(job, source.suite_overrides), event):
            if _runs_here(source, other):
                event = _with_outputs(source, other, event, workspace, checkout)
        outputs, artifacts = _run_job(source, job, event, workspace, checkout)
        return replace(event, outputs={**event.outputs, id: outputs}, artifacts={**event.artifacts, **artifacts})
    file = next(each.call.workflow for each in called.values() if each.call)
    read = expressions.references(" ".join(str(raw) for raw in file.outputs.values()))
    for own_id, each in called.items():
        if any(name.startswith(f"jobs.{own_id}.") for name in read):
            event = _with_outputs(source, each.id, event, workspace, checkout)
    jobs = {name: {"outputs": event.outputs.get(each.id, {})} for name, each in called.items()}
    resolve = rows.row_resolver(workflow, job, rows.blank_row(job), event).with_contexts(jobs=jobs)
    return replace(event, outputs={**event.outputs, id: resolve.strings(file.outputs)})


def _rows(source: CheckoutSource, job: Job, event: EventContext) -> list[Row]:
    """The job's rows. Raises UnknownValueError if only GitHub knows them."""
    job_rows = rows.rows(source.workflow, job, event, source.suite.describe)
    if any(row.dynamic for row in job_rows):
        raise _undecided(source, job, event)
    return job_rows


def _undecided(source: CheckoutSource, job: Job, event: EventContext) -> WorkflowError:
    try:
        rows.row_resolver(source.workflow, job, rows.blank_row(job), event).known(job.matrix)
    except UnknownValueError as error:
        jobs = ", ".join(rows.missing_outputs(job, event))
        option = f"; with --run-needs, `jobs` and `plan` run {jobs} here" if jobs else ""
        return UnknownValueError(f"the rows are not known: {error.message}", hint=f"{error.hint}{option}")
    assert job.call is not None, "its own matrix is known, so the matrix of a calling job is not"
    return _undecided(source, job.call.caller, event)


# -- a job whose output decides ----------------------------------------------------------------------------------------


@contextmanager
def _clone(source: CheckoutSource, base: str | None) -> Iterator[tuple[Path, Checkout]]:
    from tempfile import TemporaryDirectory

    from ci_tasks.checkout.snapshot import materialize  # hardly any workflow has such a job

    if not source.sample:
        resolve_rev(source.path, base or BASE)
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        workspace = Path(scratch) / "workspace"
        yield workspace, materialize(source.path, workspace, rev=source.rev, base=base)


def _run_job(
    source: CheckoutSource, job: Job, event: EventContext, workspace: Path, checkout: Checkout
) -> tuple[dict[str, str], dict[str, str]]:
    """The job's outputs, and the artifacts that it uploaded, after its steps have run in `workspace`."""
    if why := _why_not_here(job):
        message = f"its output decides the rows, and it cannot be run here: {why}"
        raise WorkflowError(message, file=source.workflow.path, job=job.id, line=job.line)
    from ci_tasks.agent import archive, processes  # most labels' rows need no job to be run here
    from ci_tasks.agent.__main__ import create
    from ci_tasks.agent.run_directory import RunDir, job_environment
    from ci_tasks.config import HostSpec
    from ci_tasks.hosts.queries import OWN
    from ci_tasks.planning.planner import RunLocation, make_plan

    run = RunDir(str(workspace.parent / f"run-{len(event.outputs)}"))
    here = replace(event, workspace=str(workspace), sha=checkout.commit)
    row = replace(rows.rows(source.workflow, job, here, source.suite.describe)[0], gpus=0)  # it only finds rows
    place = RunLocation("detect", run.path, checkout, OWN, str(workspace.parent), "")
    spec = HostSpec(name="local", runtime="none", timeout_minutes=5)
    plan = make_plan(source.workflow, job, row, spec, here, source.suite_overrides, place).plan
    create(run, plan, archive.for_this_machine())
    done = processes.run_program(["bash", run.script], plan.timeout_minutes * 60, job_environment(plan, run.path))
    if done.code != 0:
        raise CiTasksError(f"job {job.id}, whose output decides the rows, ends with {done.code}: {done.last_line}")
    resolve = rows.row_resolver(source.workflow, job, row, here)
    written = {step.id: _written(os.path.join(run.outputs, step.id)) for step in job.steps if step.id}
    resolve.contexts["steps"] = {step: {"outputs": outputs} for step, outputs in written.items()}
    return resolve.strings(job.outputs), _artifacts(os.path.join(run.artifacts, "uploaded"))


def _artifacts(directory: str) -> dict[str, str]:
    """Its directories by name, as tar.gz in base64. Larger ones are left out: run.sh has the others."""
    import tarfile

    packed: dict[str, str] = {}
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            tar.add(os.path.join(directory, name), ".")
        packed[name] = b64encode(file.getvalue()).decode()
    return {name: text for name, text in packed.items() if len(text) <= _LARGEST_ARTIFACT}


def _why_not_here(job: Job) -> str:
    if job.uses and not job.calls:
        return "it calls a workflow of another repository"
    return "it uses docker" if job.container or any(_DOCKER.search(step.run or "") for step in job.steps) else ""


def _written(path: str) -> dict[str, str]:
    """The outputs that a step has written."""
    from ci_tasks.agent.files import NotAFile, read_file
    from ci_tasks.agent.run_directory import LARGEST
    from ci_tasks.workflow.shell import parse_outputs

    try:
        return parse_outputs(read_file(path, LARGEST).decode("utf-8", "replace"))
    except (FileNotFoundError, NotAFile):
        return {}


# -- CI's rule for changed tests ---------------------------------------------------------------------------------------


def _changed_tests(source: CheckoutSource, changed: ChangedTests, workspace: Path) -> dict[str, str]:
    """The changed tests with their texts, by CI's rule. Raises WorkflowError where CI's detection ends with an error:
    nothing runs there either."""
    from ci_tasks.workflow.changed_tests import changed_jobs

    # The rule of the workflow's own script, as far as it can be read, else the suite's.
    rule = next((job.rule for job in changed_jobs(source.workflow)), changed.rule)
    words = ("diff", "-z", "--name-only", f"--diff-filter={rule.statuses}", f"{BASE}...HEAD", "--", *rule.pathspecs)
    git = open_repository(workspace).git
    if git.text_or_none("merge-base", BASE, "HEAD") is None:
        hint = f"--base REV names another{open_repository(source.path).shallow_hint}"
        raise CheckoutError("the checkout has no commit in common with its base", hint=hint)
    names = git.null_separated(*words)
    files = {name: (workspace / name).read_text(encoding="utf-8", errors="replace") for name in names}
    if without := [name for name, text in files.items() if rule.fails_without and rule.number_in(text) is None]:
        why = f"CI's detection ends with an error, and no changed test runs: no line NUM_GPUS = n in {some(without)}"
        raise WorkflowError(why, hint="add the line, with 0 for a test without GPUs")
    return files


def _by_rule(source: CheckoutSource, job: Job, event: EventContext, matrix: Mapping[str, Any]) -> JobRows:
    """The rows of the matrix that CI's rule for changed tests gives, applied here."""
    from ci_tasks.agent.records import Deviation

    planned = replace(job, condition=None, needs=(), matrix=matrix)
    trigger = rows.trigger_of(source.workflow, job)
    job_rows = rows.rows(source.workflow, planned, event, source.suite.describe)
    why = "nothing of the checkout is executed without --run-needs"
    note = Deviation("changed tests", "the workflow's own detection", "the same rule, applied by ci-tasks", why)
    return JobRows(planned, [replace(row, trigger=trigger) for row in job_rows], event, (note,))


def started_labels(
    repo: str | None, rev: str | None, base: str | None, given: GivenValues
) -> tuple[str, list[LabelStart]]:
    """What was compared, and an entry for each label of all workflows. Raises CheckoutError for a checkout without the
    base. Nothing of the checkout is executed."""
    path, how = find_checkout(repo)
    commit, name = (resolve_rev(path, base), base) if base else default_base(path)
    changed, labels = _changed_files(path, rev, commit), list[LabelStart]()
    ref = open_repository(path).git.text_or_none("rev-parse", "--symbolic-full-name", name) or ""
    branch = re.sub("^refs/(heads|remotes/[^/]+)/", "", ref) * (name != "HEAD")  # "" for a commit, and for one's own
    for file in workflow_files(path, rev):
        try:
            source = read_source(path, how, rev, file, given)
            event = event_context(source, secrets=source.workflow.secrets)
            labels += label_starts(source.workflow, replace(event, base=branch or event.base), changed)
        except (WorkflowError, re.error) as error:
            why = error.message if isinstance(error, WorkflowError) else f"invalid filter pattern: {error}"
            labels.append(LabelStart(file, "-", "?", None, why))
    return f"{counted(len(changed), 'changed file')} since {name}", labels


def _changed_files(path: Path, rev: str | None, base: str) -> list[str]:
    """What a pull request would show as changed: since the merge base, and what is not committed yet."""
    git = open_repository(path).git
    names = git.null_separated("diff", "-z", "--name-only", "--no-renames", f"{base}...{rev or 'HEAD'}")
    if rev is None:
        from tempfile import TemporaryDirectory  # what lists rows needs neither

        from ci_tasks.checkout.snapshot import take_snapshot

        with TemporaryDirectory(prefix="ci-tasks-") as scratch:
            names += take_snapshot(path, Path(scratch)).checkout.dirty
    return sorted(set(names))
