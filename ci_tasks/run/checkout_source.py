"""A checkout, and what its workflow says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import registry, resources, safe_output
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import CheckoutError, UnknownName, UsageError, WorkflowError, did_you_mean, printable, some
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues, by_job
from ci_tasks.resources import user_path
from ci_tasks.workflow.model import OF_REPOSITORY, Job
from ci_tasks.workflow.suite import label_of, matches_job, plain_names

if TYPE_CHECKING:
    from ci_tasks.agent.records import Conversion
    from ci_tasks.config import Config, HostSpec, Override
    from ci_tasks.logs.job_facts import RecoveredJob
    from ci_tasks.run.events import EventStream
    from ci_tasks.workflow.context import EventContext
    from ci_tasks.workflow.model import Workflow
    from ci_tasks.workflow.suite import Suite


@dataclass(frozen=True)
class CheckoutSource:
    """A checkout, how it was found, and its workflow. `rev` is None for the working tree. `given` is what a person says
    of what only GitHub knows. `conversions`: if `path` is a copy, what CI's checkout would convert in the original."""

    path: Path
    how: str
    workflow: Workflow
    sample: bool = False
    rev: str | None = None
    given: GivenValues = NOTHING_GIVEN
    conversions: tuple[Conversion, ...] = ()

    @property
    def suite(self) -> Suite:
        """The conventions by which its workflow names tests."""
        return registry.suite_of(self.workflow)

    @property
    def suite_overrides(self) -> tuple[Override, ...]:
        """The overrides that its suite ships. Of two overrides of one step, the first counts: a person's go before
        them."""
        from ci_tasks.config import suite_overrides

        return suite_overrides(self.suite.name, self.suite.overrides)

    @property
    def origin(self) -> str:
        """The address of the remote `origin`, "" without one."""
        from ci_tasks.checkout.repository import find_repository

        try:
            repository = find_repository(self.path)
            return repository.setting("--get", "remote.origin.url") if repository else ""
        except CheckoutError:
            return ""

    @property
    def headline(self) -> str:
        if self.sample:
            return f"checkout: the embedded sample {SAMPLE} ({self.how}); --repo DIR or {REPO_ENV} picks another"
        return printable(f"checkout: {self.path}{f' at {self.rev}' if self.rev else ''} ({self.how})")

    def with_outputs_of(self, jobs: Sequence[RecoveredJob], option: str = "") -> CheckoutSource:
        """The same, with the outputs of jobs that the logs of `jobs` show if none are given. Raises UsageError if the
        `option` that names them asks for some, and they show none."""
        from ci_tasks.logs.job_row import shown_outputs

        event = event_context(self, secrets=self.workflow.secrets)
        found = shown_outputs(self.workflow, jobs, event, self.suite.describe)
        if option and not found:
            hint = "pass the log of a job that uses one in a script, a variable or an image, or --output JOB.NAME=VALUE"
            raise UsageError(f"{option} shows no output of another job", hint=hint)
        sources = {f"needs.{name.replace('.', '.outputs.', 1)}": option or "CI's log" for name in found}
        shown, given = by_job(found), self.given
        outputs = {job: {**shown.get(job, {}), **given.outputs.get(job, {})} for job in {**shown, **given.outputs}}
        return replace(self, given=replace(given, outputs=outputs, sources={**sources, **given.sources}))

    def job_of(self, label: str) -> Job:
        """The job of a label. Raises UnknownName, which names another workflow that has such a job."""
        from ci_tasks.workflow.rows import job_of

        try:
            return job_of(self.workflow, label)
        except UnknownName as error:
            for file in workflow_files(self.path, self.rev):
                with suppress(UsageError):  # it has no such job, or cannot be read
                    job_of(_read(self.path, self.rev, file, self.given), label)
                    error.hint += f"; {file} has it: --workflow {file.removeprefix(_WORKFLOWS)}"
            raise

    def asked_key(self, config: Config, request: RunRequest, *hosts: HostSpec) -> str:
        """What decides beside the trees how rows run, hashed, since values may be secrets."""
        import hashlib  # commands that only look need none

        given = replace(self.given, sources={}, overlays=())  # overlays are in the trees
        jobs = self.workflow.jobs  # overrides of other workflows' jobs change nothing
        own = [replace(each, source="") for each in config.overrides if any(matches_job(each.job, id) for id in jobs)]
        asked = (self.workflow.path, request.image, request.probe, given, own, hosts)
        return hashlib.sha256(repr(asked).encode()).hexdigest()[:12]

    def label_of(self, name: str) -> str:
        """The label that a label, a job's name or a PR label means; any other text stays as it is."""
        from ci_tasks.workflow.rows import trigger_of

        # The job that another one needs has the same PR label; the job that it is for stands behind it.
        triggers = {trigger_of(self.workflow, job): label_of(job.id) for job in self.workflow.labelled}
        named = [label_of(job.id) for job in self.workflow.labelled if matches_job(name, job.id)]
        return named[0] if named else triggers.get(name, name)


@dataclass(frozen=True)
class RunRequest:
    """What a person asked for. `host` names hosts and pools with commas between them. `out` is where `plan` writes,
    `fresh_env` says that no packages of earlier runs are used, `keep` that a failed run leaves its container and
    workspace. `image` replaces CI's. `rows` are whole names, and count instead of `only` if there are any. `by_runner`:
    the rows take no GPU locks themselves, so the runner does, and they start Ray. `slots` is how many rows without GPUs
    may run at once if no client starts them one after another, `prefetch`: what they will download comes first.
    `run_needs`: jobs whose outputs decide the rows are run here. `probe`: the row's interpreters get it. `files`, name
    → text, are put into each run directory here: what a feature needs to know of the run when it ends."""

    label: str
    only: str | None = None
    host: str = "local"
    base: str | None = None
    out: Path | None = None
    fresh_env: bool = False
    keep: bool = False
    image: str | None = None
    rows: tuple[str, ...] = ()
    by_runner: bool = False
    slots: int = 0
    prefetch: bool = False
    run_needs: bool = True
    probe: bool = True
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionOptions:
    """How a label's rows are run: `jobs` at once on a host, left to themselves with `detach`. `resume` continues the
    newest command of the label that did not finish. `fail_fast`: the first failure ends the others; `retry_failed`: a
    failed row gets one more attempt. `events` gets what happens."""

    jobs: int | None = None
    detach: bool = False
    resume: bool = False
    fail_fast: bool = False
    retry_failed: bool = False
    events: EventStream | None = None


def read_source(path: Path, how: str, rev: str | None, workflow: str | None, given: GivenValues) -> CheckoutSource:
    """The checkout with this workflow. Raises CheckoutError, WorkflowError."""
    return CheckoutSource(path, how, _read(path, rev, workflow, given), path == resources.path(SAMPLE), rev, given)


def open_source(
    repo: str | None = None, rev: str | None = None, workflow: str | None = None, given: GivenValues = NOTHING_GIVEN
) -> CheckoutSource:
    """The checkout that is meant, with the workflow, which uses everything that is given. Raises CheckoutError,
    WorkflowError, UnknownName."""
    source = read_source(*find_checkout(repo), rev, workflow, given)
    found = source.workflow
    for name, option in given.sources.items():  # a mistyped one would give nothing
        if option == "--input" and (name := name.removeprefix("inputs.")) not in found.inputs:
            raise UnknownName("input", name, found.inputs, where=found.path)
        if option == "--output" and (name := name.split(".")[1]) not in found.jobs:
            raise UnknownName("job", name, found.jobs, where=found.path)
    called = {of[1] for job in found.jobs.values() if (of := OF_REPOSITORY.fullmatch(job.uses or ""))}
    if unused := next((name for name in given.workflow_dirs if name not in called), ""):
        message = f"--workflow-dir {unused}: {found.path} calls no workflow of it{did_you_mean(unused, called)}"
        raise UsageError(message, hint=f"it calls workflows of: {', '.join(sorted(called)) or 'no other repository'}")
    if not given.outputs_from:
        return source
    from ci_tasks.logs.job_log import jobs_in

    return source.with_outputs_of(jobs_in(given.outputs_from), f"--outputs-from {given.outputs_from}")


def event_context(source: CheckoutSource, *, secrets: tuple[str, ...] | None = None) -> EventContext:
    """What GitHub would know of this checkout. `secrets` are the names that count as set (default: the ones in the
    caller's environment). Their values stay there: a comparison reads them."""
    from ci_tasks.workflow.context import EventContext

    named = re.search(r"([^/:]+/[^/]+?)(?:\.git)?/?$", source.origin)  # owner/name
    repository = named[1] if named else "owner/repository"
    event = EventContext(repository=repository, secrets=secrets or (), read_secret=os.environ.get, given=source.given)
    if secrets is not None:
        return event
    values = {name: os.environ[name] for name in source.workflow.secrets if name in os.environ}
    safe_output.add_secrets(value for value in values.values() if value)
    return replace(
        event,
        secrets=tuple(name for name, value in values.items() if value),
        empty_secrets=tuple(name for name, value in values.items() if not value),
    )


def _read(path: Path, rev: str | None, name: str | None, given: GivenValues) -> Workflow:
    from ci_tasks.workflow.reader import read_with_called, render_template

    def read_file(name: str) -> str | None:
        of = OF_REPOSITORY.fullmatch(name)
        if of and of[1] not in given.workflow_dirs:
            return None
        root, at, file = (Path(given.workflow_dirs[of[1]]), None, of[2]) if of else (path, rev, name)
        is_inside = Path(os.path.realpath(root / file)).is_relative_to(os.path.realpath(root))
        text = _text(root, at, file) if is_inside else None
        if of and text is None:
            message = f"--workflow-dir {of[1]}: {root} has no {file}"
            raise UsageError(message, hint=f"check out {of[1]} at {of[3]} there")
        return text

    name = name or _usual(path, rev)
    for file in (name, f"{name.removesuffix('.j2')}.j2", f"{_WORKFLOWS}{name}"):
        if (text := _text(path, rev, file)) is not None:
            rendered = file.endswith(".j2")
            text = render_template(text, file) if rendered else text
            return read_with_called(text, file, read_file, rendered=rendered)
    raise _no_workflow(path, rev, f"has no {name}{f' at {rev}' if rev else ''}, nor {name}.j2")


def _usual(path: Path, rev: str | None) -> str:
    """The workflow that is meant if none is named: a suite's, else the only one. Raises CheckoutError."""
    usual = usual_workflows()
    there = workflow_files(path, rev)
    candidates = [name for name in usual if name in there] or (usual if not there else there if len(there) == 1 else [])
    if candidates:
        return candidates[0]
    raise _no_workflow(path, rev, f"has {len(there)} workflows: choose one")


def _no_workflow(path: Path, rev: str | None, why: str) -> CheckoutError:
    """The error of a checkout whose workflow is not found."""
    files = [file.removeprefix(_WORKFLOWS) for file in workflow_files(path, rev)]
    if not files:
        where = f".github/workflows{f' at {rev}' if rev else ''}"
        return CheckoutError(f"{path} has no workflow in {where}", hint="is it the checkout? --repo DIR names another")
    every = "; `ci-tasks jobs --changed` lists the labels of all" if len(files) > _MOST_FILES else ""
    return CheckoutError(f"{path} {why}", hint=f"--workflow FILE picks one of: {some(files, _MOST_FILES)}{every}")


def _text(path: Path, rev: str | None, name: str) -> str | None:
    if rev is None:
        file = path / name
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
    from ci_tasks.checkout.repository import open_repository, resolve_rev

    commit = resolve_rev(path, rev)
    return open_repository(path).git.text_or_none("show", f"{commit}:./{name}")


def workflow_files(path: Path, rev: str | None) -> list[str]:
    """The workflows of `.github/workflows`, from the checkout's root: what GitHub reads, and what templates make."""
    if rev is None:
        names = [str(file.relative_to(path)) for file in (path / _WORKFLOWS).glob("*") if file.is_file()]
    else:
        from ci_tasks.checkout.repository import open_repository

        names = (open_repository(path).git.text_or_none("ls-tree", "--name-only", rev, _WORKFLOWS) or "").splitlines()
    return sorted({name.removesuffix(".j2") for name in names if name.removesuffix(".j2").endswith((".yml", ".yaml"))})


_WORKFLOWS = ".github/workflows/"
_MOST_FILES = 12  # that an error names
REPO_ENV = "CI_TASKS_REPO"
SAMPLE = "examples/tiny-slime"


def find_checkout(repo: str | None) -> tuple[Path, str]:
    """The directory that is meant, and how it was found. Raises CheckoutError."""
    if repo:
        return _directory(repo, "--repo"), "--repo"
    if named := os.environ.get(REPO_ENV):
        return _directory(named, REPO_ENV), REPO_ENV
    here = Path.cwd()
    # Else the checkout of another project that contains this directory: its rows are meant, although no suite knows its
    # workflow.
    ours = resources.path(SAMPLE).parent.parent
    others = (each for each in (here, *here.parents) if each != ours and workflow_files(each, None))
    if directory := current_checkout() or next(others, None):
        return directory, "the current directory"
    names = (suite.directory for suite in registry.suites() if suite.directory)
    for name in sorted(names, key=lambda name: name != "slime"):  # the first, as the help says
        if _has_workflow(here.parent / name):
            return (here.parent / name).resolve(), f"the sibling ../{name}"
    return resources.path(SAMPLE), "no checkout given and none found here"


def current_checkout() -> Path | None:
    """The checkout that the current directory is, or is in."""
    here = Path.cwd()
    return next((directory for directory in (here, *here.parents) if _has_workflow(directory)), None)


def _directory(name: str, what: str) -> Path:
    path = user_path(name).absolute()
    if not path.is_dir():
        raise CheckoutError(f"{what} names {path}, which is not a directory")
    return path.resolve()


def _has_workflow(directory: Path) -> bool:
    return any((directory / f"{name}{end}").is_file() for name in usual_workflows() for end in ("", ".j2"))


def usual_workflows() -> list[str]:
    """The paths of the workflows that the suites know."""
    return [suite.workflow for suite in registry.suites() if suite.workflow]


def outline(source: CheckoutSource) -> dict[str, list[str]]:
    """Label → row names; none for a matrix that another job's output gives, or that has an error."""
    return {label_of(job.id): _names(source, job) for job in source.workflow.labelled}


def _names(source: CheckoutSource, job: Job) -> list[str]:
    if isinstance(job.matrix, str) and "needs." in job.matrix:
        return []
    names = None if job.call else plain_names(label_of(job.id), job.matrix, source.suite.describe)
    if names is None:
        from ci_tasks.workflow import rows
        from ci_tasks.workflow.context import EventContext

        event = EventContext(secrets=source.workflow.secrets)
        try:
            names = rows.names(source.workflow, job, event, source.suite.describe)
        except WorkflowError:
            return []  # `jobs` says why
    return names
