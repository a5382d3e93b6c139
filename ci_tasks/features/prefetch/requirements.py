"""Rows of a label → what their tests will ask the hub for, each once, with its place on a host."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import field
from typing import Generic, TypeVar

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, HostSpec
from ci_tasks.features.prefetch.detection import hub_requirements
from ci_tasks.features.prefetch.report import UnresolvedInRows
from ci_tasks.features.prefetch.repositories import HubRepository, HubRequirements
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.planning.containers import HostPath, container_of, environment_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.find_rows import JobRows
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow import secrets
from ci_tasks.workflow.model import Row

T = TypeVar("T")


@dataclass
class Requirement(Generic[T]):
    """A repository or a path, in one place of the host, for every row that asks for it. `where` are the places in the
    tests that do."""

    what: T
    place: HostPath
    rows: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)

    def add(self, row: str, where: str) -> None:
        for known, value in ((self.rows, row), (self.where, where)):
            if value not in known:
                known.append(value)


RequiredRepository = Requirement[HubRepository]


@dataclass
class LabelRequirements:
    """What all rows ask for. `unresolved` has the rows by place in a test, text and reason."""

    repositories: list[RequiredRepository]
    paths: list[Requirement[str]]
    unresolved: list[UnresolvedInRows]


def label_requirements(
    source: CheckoutSource,
    config: Config,
    job_rows: JobRows,
    rows: Sequence[Row],
    spec: HostSpec,
    recorder: LaunchRecorder,
) -> LabelRequirements:
    """What `rows` will ask for on a host. `recorder` has the tree that will run."""
    repositories: dict[tuple[HubRepository, HostPath], RequiredRepository] = {}
    paths: dict[tuple[str, HostPath], Requirement[str]] = {}
    unresolved: dict[tuple[str, str, str], list[str]] = {}
    for row in (row for row in rows if row.test):
        run, env = container_and_environment(source, config, job_rows, row, spec)
        found = _record(row, env, recorder)
        for repository, where in found.repositories.items():
            location = place(repository.directory, run, spec, env)
            required = repositories.setdefault((repository, location), RequiredRepository(repository, location))
            required.add(row.row, str(where))
        for path, where in found.expected.items():
            location = place(path, run, spec, env)
            paths.setdefault((path, location), Requirement(path, location)).add(row.row, str(where))
        for (text, why), where in found.unknown.items():
            unresolved.setdefault((str(where), text, why), []).append(row.row)
    return LabelRequirements(
        [*repositories.values()],
        [*paths.values()],
        [UnresolvedInRows(*key, tuple(names)) for key, names in unresolved.items()],
    )


def container_and_environment(
    source: CheckoutSource, config: Config, job_rows: JobRows, row: Row, spec: HostSpec
) -> tuple[DockerRun | None, dict[str, str]]:
    """What a row's test runs in on a host; None where it runs in no container."""
    resolve = workflow_rows.row_resolver(source.workflow, job_rows.job, row, job_rows.context)
    run = container_of(job_rows.job, resolve, plan_steps(job_rows.job, resolve, config.overrides))
    return run, environment_of(run, spec, {name: secrets.shown(value) for name, value in row.env.items()})


def _record(row: Row, env: dict[str, str], recorder: LaunchRecorder) -> HubRequirements:
    test = row.test or ""
    try:
        args = shlex.split(row.args)
    except ValueError:
        args = row.args.split()
    return hub_requirements(recorder.record(test, args, env), env, test)
