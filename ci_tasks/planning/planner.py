"""Row + host → Plan: the one location where everything about a run is decided before it begins."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from ci_tasks.agent.containers.rules import DOCKER, PODMAN
from ci_tasks.agent.containers.runtimes import container_deviations
from ci_tasks.agent.gpus.request import JOB
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, InstallStep, InstallSteps, ProbeOverlay, ProbeRules
from ci_tasks.config import HostSpec, Override
from ci_tasks.errors import Blocked, WorkflowError
from ci_tasks.planning.container_rules import (
    LOCK_DIR_ENV,
    container_rules,
    exclusive,
    gpu_locks,
    lock_deviation,
)
from ci_tasks.planning.deviations import deviations, host_deviations, overlay_deviations, probe_deviation
from ci_tasks.planning.expression_references import depends_on_matrix, referenced_names
from ci_tasks.planning.host_paths import container_of
from ci_tasks.planning.nodes import node_lines
from ci_tasks.planning.overlay_builds import build_steps, position
from ci_tasks.planning.runners import architecture, check_runner
from ci_tasks.planning.sbatch import on_slurm
from ci_tasks.planning.script import Script, Venv, render
from ci_tasks.planning.steps import PlannedStep, PlannedSteps, check_job, is_true, plan_steps
from ci_tasks.records import Checkout, Plan
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.resolve import Resolver


@dataclass(frozen=True)
class RunLocation:
    """Where a run will be: its id and directory, the workspace, and what the host offers.

    `python` is (path, version) of the interpreter for a venv. `environments` is the directory of the batch's venvs,
    `store` that of the packages which all runs share, empty for none; with `fresh` none of them are used. `lock_dir`
    holds the locks of simulated GPUs. `starts_ray`: the row's test starts Ray. `keep`: a failed run keeps its container
    and workspace. `image` replaces CI's image.
    `nodes` is the number of cluster nodes of the row. `probe` is what the probe looks for, None for a run without it.
    """

    id: str
    run_dir: str
    workspace: str
    checkout: Checkout
    python: tuple[str, str]
    environments: str
    lock_dir: str
    starts_ray: bool = False
    keep: bool = False
    image: str | None = None
    nodes: int = 1
    store: str = ""
    fresh: bool = False
    probe: ProbeRules | None = None


@dataclass(frozen=True)
class SharedSetup:
    """The leading steps that several rows share: `script`, with `secrets` in its environment, makes `directory`
    ready."""

    directory: str
    workspace: str
    script: str
    secrets: tuple[str, ...] = ()
    install: InstallSteps = field(default_factory=InstallSteps)


@dataclass(frozen=True)
class RowPlan:
    """A row's plan, and the setup that must be ready before it runs."""

    plan: Plan
    setup: SharedSetup | None


def wanted_python(workflow: Workflow, job: Job, row: Row, event: EventContext, overrides: Sequence[Override]) -> str:
    """The version that the job's setup-python names, or "". Raises WorkflowError."""
    return plan_steps(job, rows.row_resolver(workflow, job, row, event), overrides).python or ""


def check_row(workflow: Workflow, job: Job, row: Row) -> None:
    """Raises WorkflowError for a row that no host could run as it is known."""
    check_job(job, workflow.place)
    check_runner(workflow, job, row)


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
    row, planned = _evaluated(workflow, job, row, event, overrides)
    directory = _shared_directory(job, row, planned, location)
    if directory:
        location = replace(location, workspace=f"{directory}/workspace")
        event = replace(event, workspace=location.workspace)
        row, planned = _evaluated(workflow, job, row, event, overrides)
    resolve = rows.row_resolver(workflow, job, row, event)
    setup = _setup(workflow, job, row, host, planned, location, resolve, directory) if directory else None
    install = _install(workflow, job, row, planned, location) if planned.python and not setup else InstallSteps()
    steps = planned.split()[1] if setup else _with_builds(planned, job, row, host, location, len(install.steps))
    script = _script(workflow, job, row, host, resolve, location, steps, planned.python, setup)
    if script.venv and install.steps:
        script = replace(script, venv=replace(script.venv, shares_packages=True, installing=len(install.steps)))
    probe = location.probe if script.has_venv or (row.image and host.runtime in (DOCKER, PODMAN)) else None
    if location.checkout.overlays:
        probe = with_overlays(probe, location.checkout, location.workspace, row, host)
    script = replace(script, probe=probe is not None)
    needed = _secrets(script, host)
    texts = [step.text for step in steps] + [" ".join(script.container)]
    rules = container_rules(host, location.id, location.run_dir, location.lock_dir, _images(row, location))
    locks = gpu_locks(row, host, location.lock_dir, texts)
    plan = Plan(
        id=location.id,
        label=row.label,
        job=row.job,
        row=row.row,
        host=host.name,
        test=row.test,
        args=row.args,
        gpus=row.needed_gpus,
        image=row.image,
        runtime=host.runtime,
        env={name: secrets.shown(value) for name, value in row.env.items()},
        secrets=needed,
        workspace=location.workspace,
        timeout_minutes=row.timeout_minutes or host.timeout_minutes,  # 0 is no limit of CI's
        stall_minutes=host.stall_minutes,
        deviations=(
            *deviations(
                workflow,
                job,
                row,
                host,
                resolve,
                planned,
                location.checkout,
                location.python[1],
                shared=setup is not None,
                event=event,
            ),
            *host_deviations(host),
            *container_deviations(container_of(job, resolve, planned), rules),
            *lock_deviation(locks),
            *probe_deviation(probe),
            *overlay_deviations(location.checkout),
        ),
        host_env={**host.env, **({LOCK_DIR_ENV: location.lock_dir} if host.simulate else {})},
        container=rules,
        script=render(replace(script, secrets=needed)),
        setup=setup.directory if setup else None,
        install=install,
        checkout=location.checkout,
        keep=location.keep,
        exclusive=exclusive(host, texts, starts_ray=location.starts_ray),
        gpu_locks=locks,
        artifacts=host.artifacts,
        nodes=location.nodes,
        takes_locks=locks is not None and locks.count > 0 and locks.by == JOB,
        may_fail=is_true(resolve.known(job.continue_on_error)),
        probe=probe,
    )
    if location.nodes != 1:
        plan = replace(plan, deviations=(*plan.deviations, *node_lines(location.nodes, plan.gpus, host).deviations))
    return RowPlan(on_slurm(plan) if host.kind == "slurm" else plan, setup)


def _with_builds(
    planned: PlannedSteps, job: Job, row: Row, host: HostSpec, location: RunLocation, installing: int
) -> tuple[PlannedStep, ...]:
    """The steps with those that build overlays: in a container of the row's image where its steps start containers."""
    starts_container = bool(row.image) and host.runtime in (DOCKER, PODMAN) and not job.container and not planned.python
    image = row.image if starts_container else None
    at = position(planned.steps, installing, in_image=image is not None)
    builds = build_steps(location.checkout, location.workspace, image, host.secrets, planned.steps[at].text)
    return (*planned.steps[:at], *builds, *planned.steps[at:])


def with_overlays(probe: ProbeRules | None, checkout: Checkout, workspace: str, row: Row, host: HostSpec) -> ProbeRules:
    """The probe puts the overlays before what is installed. Raises Blocked where no interpreter gets it."""
    if probe is None:
        raise Blocked(
            f"row {row.row} on host {host.name} (runtime {host.runtime}) has no interpreter of its own, so --with"
            " cannot lay a working tree over its packages",
            hint="overlays work in docker and podman containers and in a row's venv",
        )
    overlays = tuple(
        ProbeOverlay(f"{workspace}/{overlay.directory}", overlay.modules, f"{workspace}/{OVERLAYS}")
        for overlay in checkout.overlays
    )
    names = (name for overlay in overlays for name in overlay.modules)
    return replace(probe, packages=tuple(dict.fromkeys([*probe.packages, *names])), overlays=overlays)


def _images(row: Row, location: RunLocation) -> dict[str, str]:
    return {row.image: location.image} if row.image and location.image else {}


def _evaluated(
    workflow: Workflow, job: Job, row: Row, event: EventContext, overrides: Sequence[Override]
) -> tuple[Row, PlannedSteps]:
    """The row and its steps under `event`: a row that was listed knew neither the commit nor the workspace."""
    row = replace(row, env=rows.environment(workflow, job, row, event))
    resolve = rows.row_resolver(workflow, job, row, event)
    resolve.number(job.timeout_minutes, "timeout-minutes")
    for name, value in row.env.items():
        if "\0" in name + value:
            raise WorkflowError(
                "a variable cannot hold a NUL byte",
                file=workflow.path,
                job=job.id,
                line=job.line,
                text=f"{name}: {value!r}",
            )
    return row, plan_steps(job, resolve, overrides)


def _shared_directory(job: Job, row: Row, planned: PlannedSteps, location: RunLocation) -> str | None:
    """Where the rows share a venv: where CI uses setup-python, the matrix has several rows, and its leading steps are
    the same for each. Rows whose steps would see another environment get another venv."""
    shared, _ = planned.split()
    if not planned.python or row.total < 2 or not shared:
        return None
    own = sorted((name, row.env[name]) for name in job.env if _of_row(job, name) and _mentioned(name, shared))
    text = repr((location.python[1], own))
    key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"{location.environments}/{row.label}-{key}"


def _setup(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    planned: PlannedSteps,
    location: RunLocation,
    resolve: Resolver,
    directory: str,
) -> SharedSetup:
    shared, _ = planned.split()
    install = _install(workflow, job, row, planned, location)
    builds = build_steps(location.checkout, location.workspace)
    script = Script(
        title=f"Install steps of {row.job}",
        commit=location.checkout.commit,
        workspace=location.workspace,
        env=_setup_env(workflow, job, row, shared),
        steps=(*shared, *builds),
        is_setup=True,
        venv=Venv(
            python=location.python[0],
            path=f"{directory}/venv",
            shares_packages=bool(install.steps),
            installing=len(shared),
        ),
        github={name: value for name, value in _github(job, row, location, resolve).items() if name != "GITHUB_SHA"},
    )
    needed = _secrets(script, host if builds else None)
    return SharedSetup(directory, location.workspace, render(replace(script, secrets=needed)), needed, install)


def _install(workflow: Workflow, job: Job, row: Row, planned: PlannedSteps, location: RunLocation) -> InstallSteps:
    """The leading steps, whose packages runs can share, as they are for any workspace."""
    steps = planned.split()[0] or planned.steps[:-1]
    if job.container or not location.store or not steps or not _runs_agent(location.python[1]):
        return InstallSteps()

    def portable(text: str) -> str:
        return text.replace(location.workspace, "$GITHUB_WORKSPACE")

    return InstallSteps(
        store=location.store,
        steps=tuple(
            InstallStep(
                portable(step.text),
                step.words,
                portable(step.directory).removeprefix("$GITHUB_WORKSPACE").lstrip("/"),
                tuple(sorted(f"{name}={portable(value)}" for name, value in step.env.items())),
            )
            for step in steps
        ),
        env=tuple(sorted(f"{name}={portable(value)}" for name, value in _setup_env(workflow, job, row, steps).items())),
        fresh=location.fresh,
    )


def _runs_agent(version: str) -> bool:
    return [int(part) for part in version.split(".")[:2]] >= [3, 8]


def _setup_env(workflow: Workflow, job: Job, row: Row, shared: Sequence[PlannedStep]) -> Mapping[str, str]:
    """The variables that every row and every commit has alike, such as PIP_INDEX_URL, and those which the shared steps
    name. Others would make other install steps of each row, or of each edit."""
    raw = {**workflow.env, **job.env}
    return {
        name: value
        for name, value in row.env.items()
        if _mentioned(name, shared) or not any(_changes(read) for read in referenced_names([str(raw.get(name, ""))]))
    }


def _changes(read: str) -> bool:
    return depends_on_matrix([read]) or read.split(".")[0] in ("github", "needs", "steps")


def _of_row(job: Job, name: str) -> bool:
    return depends_on_matrix(referenced_names([str(job.env[name])]))


def _mentioned(name: str, steps: Sequence[PlannedStep]) -> bool:
    return any(name in text for step in steps for text in (step.text, *step.env.values()))


def _script(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    resolve: Resolver,
    location: RunLocation,
    steps: Sequence[PlannedStep],
    python: str | None,
    setup: SharedSetup | None,
) -> Script:
    venv = None
    if python and not setup:
        venv = Venv(python=location.python[0], path=f"{location.run_dir}/tmp/venv")
    elif host.simulate and not setup:
        venv = Venv(python=location.python[0], layered=True)
    elif row.image and host.runtime == "none" and not setup:
        venv = Venv(layered=True)  # whoever is inside the image already wants to keep it, and rows run side by side
    container: list[str] = []
    env: dict[str, str] = dict(row.env)
    if job.container:
        env.update(resolve.strings(job.container.env))
        volumes = [word for volume in job.container.volumes for word in ("-v", resolve.text(volume))]
        options = _words(resolve.text(job.container.options), workflow, job)
        container = [*options, *volumes, resolve.text(job.container.image)]
    return Script(
        title=f"{row.label} / {row.row}",
        commit=location.checkout.commit,
        workspace=location.workspace,
        env=env,
        steps=steps,
        venv=venv,
        setup=setup.directory if setup else None,
        container=container,
        github=_github(job, row, location, resolve),
    )


def _words(options: str, workflow: Workflow, job: Job) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        line = job.container.line if job.container else job.line
        raise WorkflowError(
            f"container options: {error}", file=workflow.path, job=job.id, line=line, text=options
        ) from None


def _secrets(script: Script, host: HostSpec | None) -> tuple[str, ...]:
    texts = [*script.env.values(), *script.container]
    for step in script.steps:
        texts += [step.text, step.directory, *step.env.values()]
    used = [name for text in texts for name in secrets.names(text)]
    return tuple(dict.fromkeys([*used, *(host.secrets if host else ())]))


def _github(job: Job, row: Row, location: RunLocation, resolve: Resolver) -> dict[str, str]:
    """The variables that GitHub's runner sets; those of a pull request's number or of its servers mean nothing."""
    github = resolve.contexts["github"]
    return {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_JOB": row.job,
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_REF": str(github["ref"]),
        "GITHUB_BASE_REF": str(github["base_ref"]),
        "GITHUB_REPOSITORY": str(github["repository"]),
        "GITHUB_WORKFLOW": str(github["workflow"]),
        "GITHUB_SHA": location.checkout.commit,
        "RUNNER_OS": "Linux",
        "RUNNER_ARCH": architecture(job, resolve),
        "RUNNER_TEMP": "/tmp",
    }
