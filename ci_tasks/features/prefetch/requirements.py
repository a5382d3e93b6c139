"""Rows of a label → what their tests will ask the hub for, each once, with its place on a host."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ci_tasks.config import Config, HostSpec
from ci_tasks.features.prefetch.detection import hub_requirements
from ci_tasks.features.prefetch.report import UnresolvedInRows
from ci_tasks.features.prefetch.repositories import HubRepository, HubRequirements, SourceLocation
from ci_tasks.planning.host_paths import HostPath, container_of, environment_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.recorder.record import LaunchRecorder
from ci_tasks.recorder.records import READ
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.job_outputs import JobRows
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow import secrets
from ci_tasks.workflow.model import Row

Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class RequiredRepository:
    """A repository in one place, for every row that asks for it. `where` are the places in the tests that do."""

    repository: HubRepository
    place: HostPath
    rows: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True)
class RequiredPath:
    """A path that tests take to be there."""

    path: str
    place: HostPath
    rows: tuple[str, ...]
    where: tuple[str, ...]


@dataclass
class LabelRequirements:
    """Everything that the rows ask for."""

    repositories: list[RequiredRepository] = field(default_factory=list)
    paths: list[RequiredPath] = field(default_factory=list)
    unresolved: list[UnresolvedInRows] = field(default_factory=list)


def label_requirements(
    source: CheckoutSource,
    config: Config,
    job_rows: JobRows,
    rows: Sequence[Row],
    spec: HostSpec,
    recorder: LaunchRecorder,
) -> LabelRequirements:
    """What `rows` will ask for on a host. `recorder` has the tree that will run."""
    collected = _LabelCollector()
    for row in rows:
        if row.test:
            _collect(collected, source, config, job_rows, row, spec, recorder)
    return LabelRequirements(
        repositories=[
            RequiredRepository(repository, location, tuple(names), tuple(where))
            for (repository, location), (names, where) in collected.repositories.items()
        ],
        paths=[
            RequiredPath(path, location, tuple(names), tuple(where))
            for (path, location), (names, where) in collected.paths.items()
        ],
        unresolved=[
            UnresolvedInRows(where, text, why, tuple(names))
            for (where, text, why), names in collected.unresolved.items()
        ],
    )


_RowsAndLocations = tuple[dict[str, None], dict[str, None]]  # rows and places in tests, each once, in order


@dataclass
class _LabelCollector:
    repositories: dict[tuple[HubRepository, HostPath], _RowsAndLocations] = field(default_factory=dict)
    paths: dict[tuple[str, HostPath], _RowsAndLocations] = field(default_factory=dict)
    unresolved: dict[tuple[str, str, str], dict[str, None]] = field(default_factory=dict)


def _collect(
    collected: _LabelCollector,
    source: CheckoutSource,
    config: Config,
    job_rows: JobRows,
    row: Row,
    spec: HostSpec,
    recorder: LaunchRecorder,
) -> None:
    resolve = workflow_rows.row_resolver(source.workflow, job_rows.job, row, job_rows.context)
    run = container_of(job_rows.job, resolve, plan_steps(job_rows.job, resolve, config.overrides))
    env = environment_of(run, spec, {name: secrets.shown(value) for name, value in row.env.items()})
    requirements = _record(row, env, recorder)
    for repository, where in requirements.repositories:
        location = place(repository.directory, run, spec, env)
        _note(collected.repositories.setdefault((repository, location), ({}, {})), row, where)
    for expected, where in requirements.expected:
        location = place(expected.path, run, spec, env)
        _note(collected.paths.setdefault((expected.path, location), ({}, {})), row, where)
    for unknown, where in requirements.unknown:
        key = (_location_text(where), unknown.text, unknown.why)
        collected.unresolved.setdefault(key, {})[row.row] = None


def _record(row: Row, env: dict[str, str], recorder: LaunchRecorder) -> HubRequirements:
    test = row.test or ""
    try:
        args = shlex.split(row.args)
    except ValueError:
        args = row.args.split()
    return hub_requirements(recorder.record(test, args, env), env, test)


def _note(entry: _RowsAndLocations, row: Row, where: SourceLocation) -> None:
    entry[0][row.row] = None
    entry[1][_location_text(where)] = None


def _location_text(where: SourceLocation) -> str:
    read = " (read, not executed)" if where.origin == READ else ""
    return f"{where.file}:{where.line}{read}"
