"""Row + host → Plan: everything about a run is decided here, before it begins."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ci_tasks.agent import records
from ci_tasks.agent.docker_argv import ENGINES, ContainerRules
from ci_tasks.agent.docker_rewrite import container_deviations
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import JOB, Checkout, Deviation, Event, Plan
from ci_tasks.config import HostSpec, Override
from ci_tasks.errors import Blocked, WorkflowError
from ci_tasks.planning import containers
from ci_tasks.planning.actions import architecture
from ci_tasks.planning.deviations import CODE, CONVERTED, agent_deviations, code_deviations, deviations
from ci_tasks.planning.placement import on_slurm
from ci_tasks.planning.script import PlannedStep, Script, Venv, render, retried
from ci_tasks.planning.steps import check_job, depends_on_matrix, is_true, plan_steps, referenced_names
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row, Workflow

_INSTALL_MINUTES = 60.0
# That shared install steps go on without a client. On another host: a laptop may sleep, or its network be away. Here
# the client's own process is missing.
_CLIENT_SECONDS, _CLIENT_SECONDS_HERE = 900.0, 2.0


@dataclass(frozen=True)
class RunLocation:
    """Where a run will be: its id and directory, and what the host offers.

    `python` is (path, version) of the interpreter for a venv. `environments` is the directory of the batch's venvs, and
    `store` the directory of packages for all runs, empty for none; with `fresh` none of them are used. `lock_dir`
    holds the locks of simulated GPUs. `starts_ray`: the row's test starts Ray. `keep`: a failed run keeps its container
    and workspace. `image` replaces CI's image.
    `probe` is what the probe looks for, None for a run without it.
    """

    id: str
    run_dir: str
    checkout: Checkout
    python: tuple[str, str]
    environments: str
    lock_dir: str
    starts_ray: bool = False
    keep: bool = False
    image: str | None = None
    store: str = ""
    fresh: bool = False
    probe: records.ProbeRules | None = None


@dataclass(frozen=True)
class RowPlan:
    """A row's plan, and the plan of the leading steps that it shares with others, which run before it. They are a run
    of their own in the directory `plan.setup`."""

    plan: Plan
    setup: Plan | None


def wanted_python(workflow: Workflow, job: Job, row: Row, event: EventContext, overrides: Sequence[Override]) -> str:
    """The version that the job's setup-python names, or "". Raises WorkflowError."""
    return plan_steps(job, rows.row_resolver(workflow, job, row, event), overrides).python or ""


def check_row(workflow: Workflow, job: Job, row: Row) -> None:
    """Raises WorkflowError for a row that no host could run as it is known: its machine has no equivalent here, or its
    number of GPUs is not known."""
    check_job(job, workflow.file_of(job).place)
    message, hint = row.refused, ""
    if message is None and row.gpus is None:
        message = "the workflow does not say how many GPUs the row takes"
        hint = "give the number that CI's runner gives it: --gpus N (0 for none)"
        named = re.findall(r"needs\.([\w-]+)\.outputs\.([\w-]+)", str(job.runs_on))
        hint += "".join(f", or the runner's label: --output {need}.{name}=LABEL" for need, name in named)
    if message is not None:
        line, text = getattr(job.runs_on, "line", 0) or job.line, f"runs-on: {job.runs_on}"
        file = workflow.file_of(job).place
        raise WorkflowError(message, file=file, job=job.id, line=line, text=text, hint=hint)


def make_plan(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    event: EventContext,
    overrides: Sequence[Override],
    location: RunLocation,
) -> RowPlan:
    """Decide everything about `row` on `host`. Raises WorkflowError for what cannot be planned."""
    check_row(workflow, job, row)
    directory = _Planning(workflow, job, row, host, event, overrides, location).shared_directory()
    if directory:  # the rows that share it are evaluated for its workspace, which was not known before
        workspace = f"{directory}/workspace"
        event = replace(event, workspace=workspace)
    return _Planning(workflow, job, row, host, event, overrides, location).plan(directory)


@dataclass
class _Planning:
    """One row on one host, evaluated under `event`: a row that was listed knew neither the commit nor the workspace."""

    workflow: Workflow
    job: Job
    row: Row
    host: HostSpec
    event: EventContext
    overrides: Sequence[Override]
    location: RunLocation

    def __post_init__(self) -> None:
        workflow, job, event = self.workflow, self.job, self.event
        self.row = replace(self.row, env=rows.environment(workflow, job, self.row, event))
        self.resolve = rows.row_resolver(workflow, job, self.row, event)
        self.resolve.number(job.timeout_minutes, "timeout-minutes")
        self.steps = plan_steps(job, self.resolve, self.overrides, event.artifacts)

    def plan(self, directory: str | None) -> RowPlan:
        """`directory` has the venv that the row shares with others."""
        job, row, host, location, planned = self.job, self.row, self.host, self.location, self.steps
        setup = self._setup(directory) if directory else None
        install = self._install() if planned.python and not setup else records.InstallSteps()
        steps = planned.split()[1] if setup else self.steps.steps
        script = self._script(steps, directory)
        if script.venv and install.texts:
            script = replace(script, venv=replace(script.venv, installing=len(install.texts)))
        is_own = script.has_venv or bool(row.image and host.runtime in ENGINES)
        probe = location.probe if is_own or not row.image else None
        if location.checkout.overlays:
            probe = with_overlays(probe if is_own else None, location.checkout, self.event.workspace, row, host)
        by_path = probe is not None and (script.has_venv or not row.image)
        script = replace(script, probe=by_path, secrets=_secrets(script, host))
        texts = [step.text for step in steps] + [" ".join(script.container)]
        images = {row.image: location.image} if row.image and location.image else {}
        rules = containers.container_rules(host, location.id, location.run_dir, location.lock_dir, images)
        locks = containers.gpu_locks(row, host, location.lock_dir, texts)
        of_row = (self.workflow, job, row, host, self.event, self.resolve, planned, location.python[1])
        differences = (
            *code_deviations(location.checkout),
            *deviations(*of_row, shared=setup is not None),
            *container_deviations(containers.container_of(job, self.resolve, planned), rules),
            *agent_deviations(locks, probe, location.checkout),
        )
        host_env = {**host.env, **({containers.LOCK_DIR_ENV: location.lock_dir} if host.simulate else {})}
        plan = Plan(
            id=location.id, label=row.label, job=row.job, row=row.row, host=host.name, test=row.test, args=row.args,
            gpus=row.needed_gpus, image=row.image, runtime=host.runtime, secrets=tuple(script.secrets),
            env={name: secrets.shown(value) for name, value in row.env.items()}, workspace=self.event.workspace,
            timeout_minutes=row.timeout_minutes or host.timeout_minutes,  # 0 is no limit of CI's
            stall_minutes=host.stall_minutes, deviations=differences, host_env=host_env, container=rules,
            script=render(script), setup=directory, install=install, checkout=location.checkout, keep=location.keep,
            exclusive=containers.exclusive(host, texts, starts_ray=location.starts_ray), gpu_locks=locks,
            artifacts=host.artifacts, takes_locks=locks is not None and locks.count > 0 and locks.by == JOB,
            may_fail=is_true(self.resolve.known(job.continue_on_error)), probe=probe,
        )  # fmt: skip
        return RowPlan(on_slurm(plan) if host.kind == "slurm" else plan, setup)

    def shared_directory(self) -> str | None:
        """Where the rows share a venv: if CI uses setup-python, the matrix has several rows, and its leading steps are
        the same for each. Rows whose steps would see another environment get another venv."""
        shared, _ = self.steps.split()
        if not self.steps.python or self.row.total < 2 or not shared:
            return None
        of_row = [name for name, raw in self.job.env.items() if depends_on_matrix(referenced_names([str(raw)]))]
        own = sorted((name, self.row.env[name]) for name in of_row if _mentioned(name, shared))
        text = repr((self.location.python[1], own, self.row.callers))
        key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]
        label = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.row.label)
        return f"{self.location.environments}/{label}-{key}-{self.host.name}"  # the logs of several hosts meet here

    def _setup(self, directory: str) -> Plan:
        host, location, (shared, _), install = self.host, self.location, self.steps.split(), self._install()
        script = Script(
            title=f"Install steps of {self.row.job}", commit=location.checkout.commit, workspace=self.event.workspace,
            env=self._setup_env(shared), steps=shared, is_setup=True,
            venv=Venv(location.python[0], f"{directory}/venv", installing=len(shared) if install.texts else 0),
            github={name: value for name, value in self._github().items() if name != "GITHUB_SHA"},
            artifacts=self.event.artifacts,
        )  # fmt: skip
        script = replace(script, secrets=_secrets(script, None))
        return Plan(
            id=posixpath.basename(directory), secrets=tuple(script.secrets), host_env=host.env,
            timeout_minutes=_INSTALL_MINUTES, stall_minutes=host.stall_minutes,
            container=ContainerRules(runtime="none"), script=render(script), workspace=self.event.workspace,
            keeps_workspace=True, install=install,
            client_seconds=_CLIENT_SECONDS_HERE if host.kind == "local" else _CLIENT_SECONDS,
        )  # fmt: skip

    def _install(self) -> records.InstallSteps:
        """The leading steps, whose packages runs can share, as they are for any workspace."""
        location, steps = self.location, self.steps.split()[0] or self.steps.steps[: self.steps.last]
        if self.job.container or not location.store or not steps:
            return records.InstallSteps()
        setup_env = self._setup_env(steps)

        def entry(step: PlannedStep) -> str:
            env = sorted(f"{name}={value}" for name, value in {**setup_env, **step.env}.items())
            text = "\n".join([step.text, *step.words, step.directory, *env])
            return text.replace(self.event.workspace, "$GITHUB_WORKSPACE")

        return records.InstallSteps(location.store, tuple(map(entry, steps)), location.fresh)

    def _setup_env(self, shared: Sequence[PlannedStep]) -> Mapping[str, str]:
        """The variables that are equal for every row and every commit, such as PIP_INDEX_URL, and the ones that the
        shared steps name. Others would make other install steps of each row, or of each edit."""
        raw = {**self.workflow.file_of(self.job).env, **self.job.env}

        def changes(name: str) -> bool:
            reads = referenced_names([str(raw.get(name, ""))])
            return depends_on_matrix(reads) or any(read.split(".")[0] in ("github", "needs", "steps") for read in reads)

        return {name: value for name, value in self.row.env.items() if _mentioned(name, shared) or not changes(name)}

    def _script(self, steps: Sequence[PlannedStep], setup: str | None) -> Script:
        job, row, host, resolve, location = self.job, self.row, self.host, self.resolve, self.location
        venv = None
        if self.steps.python and not setup:
            venv = Venv(python=location.python[0], path=f"{location.run_dir}/tmp/venv")
        elif host.simulate and not setup:
            venv = Venv(python=location.python[0], layered=True)
        elif self.steps.layers_venv(row, host) and not setup:
            venv = Venv(layered=True)  # a person inside the image already wants to keep it, and rows run side by side
        container: list[str] = []
        env = dict(row.env)
        if job.container:
            env.update(resolve.strings(job.container.env))
            container = containers.container_words(job.container, resolve)
        if tests := self.event.given.pytest_options:
            env.setdefault("PYTEST_ADDOPTS", "")
            env = _with_tests(env, tests)
            steps = [replace(step, env=_with_tests(step.env, tests)) for step in steps]
        return Script(
            title=f"{row.label} / {row.row}", commit=location.checkout.commit, workspace=self.event.workspace, env=env,
            steps=steps, venv=venv, setup=setup, container=container, github=self._github(),
            artifacts=self.event.artifacts,
        )  # fmt: skip

    def _github(self) -> dict[str, str]:
        """The variables that GitHub's runner sets; the ones for a pull request's number or its servers mean nothing."""
        github = self.resolve.contexts["github"]
        return {
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_JOB": self.job.own_id,
            "GITHUB_EVENT_NAME": "pull_request",
            **{f"GITHUB_{name.upper()}": str(github[name]) for name in ("ref", "base_ref", "repository", "workflow")},
            "GITHUB_SHA": self.location.checkout.commit,
            "RUNNER_OS": "Linux",
            "RUNNER_ARCH": architecture(self.job, self.resolve),
            "RUNNER_TEMP": "/tmp",
        }


def with_overlays(
    probe: records.ProbeRules | None, checkout: Checkout, workspace: str, row: Row, host: HostSpec
) -> records.ProbeRules:
    """The probe puts the overlays before what is installed. Raises Blocked if no interpreter gets it."""
    if probe is None:
        where = f"row {row.row} on host {host.name} (runtime {host.runtime})"
        message = f"{where} has no interpreter of its own, so --with cannot lay a working tree over its packages"
        raise Blocked(message, hint="overlays work in docker and podman containers and in a row's venv")
    overlays = tuple(
        records.ProbeOverlay(f"{workspace}/{overlay.directory}", overlay.modules, f"{workspace}/{records.OVERLAYS}")
        for overlay in checkout.overlays
    )
    names = (name for overlay in overlays for name in overlay.modules)
    return replace(probe, packages=tuple(dict.fromkeys([*probe.packages, *names])), overlays=overlays)


def _mentioned(name: str, steps: Sequence[PlannedStep]) -> bool:
    return any(name in text for step in steps for text in (step.text, *step.env.values()))


def _secrets(script: Script, host: HostSpec | None) -> tuple[str, ...]:
    texts = [*script.env.values(), *script.container]
    for step in script.steps:
        texts += [step.text, step.directory, *step.env.values()]
    used = [name for text in texts for name in secrets.names(text)]
    return tuple(dict.fromkeys([*used, *(host.secrets if host else ())]))


# -- retry -------------------------------------------------------------------------------------------------------------

RETRIED = "retried"


def _with_tests(env: Mapping[str, str], options: str) -> dict[str, str]:
    """The variables, in which what pytest gets says which tests it runs."""
    return {name: f"{value} {options}".strip() if name == "PYTEST_ADDOPTS" else value for name, value in env.items()}


def failed_step(plan: Plan, events: Sequence[Event]) -> int:
    """The step that failed, or the last that started, counted from 1 among steps run. The first of a job that runs
    in a container: what its steps did there has gone with it."""
    if "export CI_TASKS_INSIDE=1" in plan.script and plan.container_runtime != "none":
        return 1
    number = plan.retry.step - 1 if plan.retry else 0
    for event in events:
        if event.event == "step failed":
            break
        number += event.event == "step"
    return max(number, plan.retry.step if plan.retry else 1)


def retry_plan(before: Plan, *, id: str, run_dir: str, earlier_dir: str, step: int, checkout: Checkout) -> Plan:
    """The plan of the run `id` in `run_dir`, which goes on from `before`, whose script it has, in `earlier_dir`."""
    directories = (*(before.retry.directories if before.retry else ()), earlier_dir)
    commits = before.checkout.commit, checkout.commit
    rules = containers.rules_of_run(before.container, id, run_dir) if before.container else None
    venv = f"{directories[0]}/tmp/venv"
    # A job's container sees only what is mounted.
    if rules and before.container_runtime in ENGINES and venv in before.script:
        rules = replace(rules, volumes=(*rules.volumes, venv))
    here, why = f"steps {step}.. of run {before.id}", "in its kept workspace, without the earlier steps"
    said = Deviation(RETRIED, "all steps", here, why)
    others = (deviation for deviation in before.deviations if deviation.what not in (CODE, CONVERTED, RETRIED))
    return replace(
        before, id=id, checkout=checkout, script=retried(before.script, step, commits, directories), container=rules,
        keep=True, retry_of=before.id,
        retry=records.Retry(directories, step, before.checkout.commit, before.checkout.flat or before.checkout.tree),
        deviations=(*code_deviations(checkout), *others, said),
    )  # fmt: skip
