"""Row + host → Plan: the one place where everything about a run is decided before it begins."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci_tasks.errors import WorkflowError
from ci_tasks.model import Checkout, Deviation, HostSpec, Job, Override, Plan, Row, Workflow
from ci_tasks.plan.script import Script, Venv, render
from ci_tasks.plan.steps import PlannedStep, PlannedSteps, plan_steps, version_matches
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import Situation
from ci_tasks.workflow.resolve import Resolver

LOCK_DIR_ENV = "CI_TASKS_GPU_LOCK_DIR"


@dataclass(frozen=True)
class Place:
    """Where a run will be: its id and directory, the workspace, and what the host offers.

    `python` is (path, version) of the interpreter for a venv; `environments` is the directory of the venvs that rows
    share; `lock_dir` holds the locks of pretend GPUs.
    """

    id: str
    run_dir: str
    workspace: str
    checkout: Checkout
    python: tuple[str, str]
    environments: str
    lock_dir: str


@dataclass(frozen=True)
class Setup:
    """The leading steps that several rows share: `script`, with `secrets` in its environment, makes `directory` ready."""

    directory: str
    workspace: str
    script: str
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drafted:
    """A row's plan, and the setup that must be ready before it runs."""

    plan: Plan
    setup: Setup | None


def wanted_python(workflow: Workflow, job: Job, row: Row, situation: Situation, overrides: Sequence[Override]) -> str:
    """The version that the job's setup-python names, or "". Raises WorkflowError."""
    return plan_steps(job, rows.resolver(workflow, job, row, situation), overrides).python or ""


def make_plan(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    situation: Situation,
    overrides: Sequence[Override],
    place: Place,
) -> Drafted:
    """Decide everything about `row` on `host`. Raises WorkflowError for what cannot be planned."""
    row, planned = _evaluated(workflow, job, row, situation, overrides)
    directory = _shared_directory(planned, row, place)
    if directory:
        place = replace(place, workspace=f"{directory}/workspace")
        situation = replace(situation, workspace=place.workspace)
        row, planned = _evaluated(workflow, job, row, situation, overrides)
    resolve = rows.resolver(workflow, job, row, situation)
    setup = _setup(row, planned, place, directory) if directory else None
    steps = planned.split()[1] if setup else planned.steps
    script = _script(workflow, job, row, host, resolve, place, steps, planned.python, setup)
    needed = _secrets(script, host)
    plan = Plan(
        id=place.id,
        label=row.label,
        job=row.job,
        row=row.row,
        host=host.name,
        test=row.test,
        args=row.args,
        gpus=row.gpus or 0,
        image=row.image,
        runtime=host.runtime,
        env={name: secrets.shown(value) for name, value in row.env.items()},
        secrets=needed,
        workspace=place.workspace,
        timeout_minutes=row.timeout_minutes or host.timeout_minutes,
        stall_minutes=host.stall_minutes,
        deviations=_deviations(workflow, job, row, host, resolve, planned, place, setup),
        host_env={**host.env, **({LOCK_DIR_ENV: place.lock_dir} if host.simulate else {})},
        container=_container_rules(host, place),
        script=render(replace(script, secrets=needed)),
        setup=setup.directory if setup else None,
        checkout=place.checkout,
    )
    return Drafted(plan, setup)


def _evaluated(
    workflow: Workflow, job: Job, row: Row, situation: Situation, overrides: Sequence[Override]
) -> tuple[Row, PlannedSteps]:
    """The row and its steps under `situation`: a row that was listed knew neither the commit nor the workspace."""
    row = replace(row, env=rows.environment(workflow, job, row, situation))
    return row, plan_steps(job, rows.resolver(workflow, job, row, situation), overrides)


def _shared_directory(planned: PlannedSteps, row: Row, place: Place) -> str | None:
    """Where the rows share a venv: where CI uses setup-python, the matrix has several rows, and its leading steps are
    the same for each. Rows whose steps would see another environment get another venv."""
    shared, _ = planned.split()
    if not planned.python or row.total < 2 or not shared:
        return None
    text = repr((place.checkout.path, place.python[1], sorted(_setup_env(row, shared).items())))
    key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"{place.environments}/{row.label}-{key}"


def _setup(row: Row, planned: PlannedSteps, place: Place, directory: str) -> Setup:
    shared, _ = planned.split()
    script = Script(
        title=f"Install steps of {row.job}",
        commit=place.checkout.commit,
        workspace=place.workspace,
        env=_setup_env(row, shared),
        steps=shared,
        is_setup=True,
        venv=Venv(python=place.python[0], path=f"{directory}/venv"),
        github=_github(row, place),
    )
    needed = _secrets(script, None)
    return Setup(directory, place.workspace, render(replace(script, secrets=needed)), needed)


def _setup_env(row: Row, shared: Sequence[PlannedStep]) -> Mapping[str, str]:
    """The job's variables that the shared steps name; the others may differ from row to row."""
    return {name: value for name, value in row.env.items() if any(name in step.text for step in shared)}


def _script(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    resolve: Resolver,
    place: Place,
    steps: Sequence[PlannedStep],
    python: str | None,
    setup: Setup | None,
) -> Script:
    venv = None
    if python and not setup:
        venv = Venv(python=place.python[0], path=f"{place.run_dir}/tmp/venv")
    elif host.simulate and not setup:
        venv = Venv(python=place.python[0], layered=True)
    container: list[str] = []
    env: dict[str, str] = dict(row.env)
    if job.container:
        env.update(resolve.strings(job.container.env))
        volumes = [word for volume in job.container.volumes for word in ("-v", resolve.text(volume))]
        options = _words(resolve.text(job.container.options), workflow, job)
        container = [*options, *volumes, resolve.text(job.container.image)]
    return Script(
        title=f"{row.label} / {row.row}",
        commit=place.checkout.commit,
        workspace=place.workspace,
        env=env,
        steps=steps,
        venv=venv,
        setup=setup.directory if setup else None,
        container=container,
        github=_github(row, place),
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
        texts += [step.text, step.name, step.directory, *step.env.values()]
    used = [name for text in texts for name in secrets.names(text)]
    return tuple(dict.fromkeys([*used, *(host.secrets if host else ())]))


def _github(row: Row, place: Place) -> dict[str, str]:
    """The variables that GitHub's runner sets; those of a pull request's number and of its servers have no meaning here."""
    return {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_JOB": row.job,
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_REF": "refs/pull/0/merge",
        "GITHUB_SHA": place.checkout.commit,
        "RUNNER_OS": "Linux",
        "RUNNER_ARCH": "X64",
        "RUNNER_TEMP": "/tmp",
    }


def _container_rules(host: HostSpec, place: Place) -> Mapping[str, Any]:
    """What the container adapter does with CI's `docker run`; see ci_tasks.runner.container."""
    env = {"CI_TASKS_RUN_DIR": place.run_dir, "PYTEST_ADDOPTS": f"--junitxml={_junit(place)}"}
    if host.simulate:
        env[LOCK_DIR_ENV] = place.lock_dir
    return {
        "runtime": host.runtime,
        "pull": host.pull,
        "image": {},
        "mounts": dict(host.mounts),
        "name": f"ci-tasks-{place.id}",
        "labels": {"ci-tasks.run": place.id},
        "env": env,
        "volumes": [f"{place.run_dir}/artifacts"],
    }


def _junit(place: Place) -> str:
    return shlex.quote(f"{place.run_dir}/artifacts/junit.xml")


def _deviations(
    workflow: Workflow,
    job: Job,
    row: Row,
    host: HostSpec,
    resolve: Resolver,
    planned: PlannedSteps,
    place: Place,
    setup: Setup | None,
) -> tuple[Deviation, ...]:
    checkout = place.checkout
    dirty = f" with {len(checkout.dirty)} uncommitted files" if checkout.dirty else ""
    found = [
        Deviation(
            "code",
            "the pull request's merge commit",
            f"{checkout.commit[:12]}{dirty}",
            "your working tree is what is tested",
        ),
        Deviation("PYTEST_ADDOPTS", "unset", "--junitxml=…", "evidence of the tests that ran"),
        *planned.deviations,
    ]
    if planned.python and not version_matches(planned.python, place.python[1]):
        found.append(Deviation("Python", planned.python, place.python[1], f"no Python {planned.python} on this host"))
    if setup:
        found.append(
            Deviation(
                "install steps", "once a row", "once for all rows", "the same for every row; rows share one checkout"
            )
        )
    if row.runner == "github-hosted":
        found.append(Deviation("machine", "GitHub's runner", f"host {host.name}", "CI's packages may be missing here"))
    if host.simulate and not planned.python:
        found.append(
            Deviation(
                "Python packages", "the image's", f"a venv over Python {place.python[1]}", f"{host.name} has no image"
            )
        )
    if host.simulate and row.gpus:
        found.append(Deviation("GPUs", f"{row.gpus} of the runner", "pretend GPUs", f"{host.name} simulates them"))
    if row.image and host.runtime != "docker":
        here = "no container" if host.runtime == "none" else host.runtime
        found.append(Deviation("container", row.image, here, f"runtime of host {host.name}"))
    if not resolve.condition(job.condition):
        found.append(Deviation("if", f"does not run: {job.condition}", "runs", "it was asked for by name"))
    assumed = [name for name in job.needs if name not in resolve.contexts["needs"] or not _has_outputs(resolve, name)]
    if assumed:
        found.append(Deviation("needs", f"after {', '.join(assumed)}", "not run", "their outputs count as empty"))
    missing = [
        name for name in workflow.secrets if name in _named(job, workflow) and name not in resolve.contexts["secrets"]
    ]
    if missing:
        found.append(Deviation("secrets", ", ".join(missing), "unset", "not in your environment"))
    return tuple(found)


def _has_outputs(resolve: Resolver, name: str) -> bool:
    return bool(resolve.contexts["needs"][name]["outputs"])


def _named(job: Job, workflow: Workflow) -> str:
    """All text of the job in which a secret may be named."""
    return repr((job, workflow.env))
