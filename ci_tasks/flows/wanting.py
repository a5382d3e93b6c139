"""Rows of a label → what their tests will ask the hub for, each once, with its place on a host."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ci_tasks.config import Config
from ci_tasks.flows.outputs import Found
from ci_tasks.flows.source import Source
from ci_tasks.model import HostSpec, Row
from ci_tasks.plan.places import Place, container_of, environment_of, place
from ci_tasks.plan.steps import plan_steps
from ci_tasks.report.prefetch import Question
from ci_tasks.suites.prefetch import wants as nouns
from ci_tasks.suites.prefetch.finding import wants
from ci_tasks.suites.prefetch.wants import Repository, Wants
from ci_tasks.suites.reading.reader import read_test
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow import secrets

Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Item:
    """A repository in one place, for every row that asks for it. `where` are the places in the tests that do."""

    repository: Repository
    place: Place
    rows: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True)
class Needed:
    """A path that tests take to be there."""

    path: str
    place: Place
    rows: tuple[str, ...]
    where: tuple[str, ...]


@dataclass
class Wanted:
    """Everything that the rows ask for."""

    items: list[Item] = field(default_factory=list)
    needed: list[Needed] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def wanted(source: Source, config: Config, found: Found, rows: Sequence[Row], spec: HostSpec, read: Read) -> Wanted:
    """What `rows` will ask for on a host. `read` gives the text of a file of the tree that will run."""
    collected = _Collected()
    for row in rows:
        if row.test:
            _collect(collected, source, config, found, row, spec, read)
    return Wanted(
        items=[
            Item(repository, spot, tuple(names), tuple(where))
            for (repository, spot), (names, where) in collected.items.items()
        ],
        needed=[
            Needed(path, spot, tuple(names), tuple(where)) for (path, spot), (names, where) in collected.needed.items()
        ],
        questions=[
            Question(where, text, why, tuple(names)) for (where, text, why), names in collected.questions.items()
        ],
    )


_Asked = tuple[dict[str, None], dict[str, None]]  # rows and places in tests, each once, in order


@dataclass
class _Collected:
    items: dict[tuple[Repository, Place], _Asked] = field(default_factory=dict)
    needed: dict[tuple[str, Place], _Asked] = field(default_factory=dict)
    questions: dict[tuple[str, str, str], dict[str, None]] = field(default_factory=dict)


def _collect(
    collected: _Collected, source: Source, config: Config, found: Found, row: Row, spec: HostSpec, read: Read
) -> None:
    resolve = workflow_rows.resolver(source.workflow, found.job, row, found.situation)
    run = container_of(found.job, resolve, plan_steps(found.job, resolve, config.overrides))
    env = environment_of(run, spec, {name: secrets.shown(value) for name, value in row.env.items()})
    asks = _read(row, env, read)
    for repository, where in asks.repositories:
        spot = place(repository.directory, run, spec, env)
        one = replace(repository, conditions=())  # two rows may come to it under other conditions
        _note(collected.items.setdefault((one, spot), ({}, {})), row, where)
    for expected, where in asks.expected:
        spot = place(expected.path, run, spec, env)
        _note(collected.needed.setdefault((expected.path, spot), ({}, {})), row, where)
    for unknown, where in asks.unknown:
        key = (_words(where), unknown.text, unknown.why)
        collected.questions.setdefault(key, {})[row.row] = None


def _read(row: Row, env: dict[str, str], read: Read) -> Wants:
    test = row.test or ""
    text = read(test)
    if text is None:
        gone = nouns.Unknown(test, "the checkout has no such file")
        return Wants(unknown=((gone, nouns.Source(test, 1, test)),))
    try:
        args = shlex.split(row.args)
    except ValueError:
        args = row.args.split()
    return wants(read_test(text, env=env, args=args, helpers=read, path=test), env, test)


def _note(asked: _Asked, row: Row, where: nouns.Source) -> None:
    asked[0][row.row] = None
    asked[1][_words(where)] = None


def _words(where: nouns.Source) -> str:
    return f"{where.file}:{where.line}"
