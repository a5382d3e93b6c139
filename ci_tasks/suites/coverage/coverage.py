"""The map: labels with their tests and what each covers, the backends together, and the gaps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ci_tasks.model import Row
from ci_tasks.suites.coverage.architecture import Read
from ci_tasks.suites.coverage.facts import E2E, Facts, facts
from ci_tasks.suites.reading.reader import read_test


@dataclass(frozen=True)
class Mode:
    """A row, with its facts."""

    row: str
    args: str
    gpus: int | None
    facts: Facts


@dataclass(frozen=True)
class Entry:
    """A test of a label, with the rows that run it. `missing` says that the checkout has no such file."""

    test: str
    modes: tuple[Mode, ...]
    missing: bool = False

    @property
    def facts(self) -> Facts:
        """Those of the first row that trains, if any does; `features` has those of all."""
        return next((mode.facts for mode in self.modes if mode.facts.kind == E2E), self.modes[0].facts)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({mode.gpus for mode in self.modes if mode.gpus is not None}))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(words for mode in self.modes for words in mode.facts.features))

    def own(self, mode: Mode) -> tuple[str, ...]:
        """What a row exercises and not every other row of the test does."""
        return tuple(
            words for words in mode.facts.features if any(words not in other.facts.features for other in self.modes)
        )


@dataclass(frozen=True)
class Label:
    """A label and its tests. `dynamic` is the expression of a matrix that only a run of another job gives."""

    label: str
    job: str
    trigger: str | None
    runner: str
    images: tuple[str, ...]
    entries: tuple[Entry, ...]
    dynamic: str | None = None
    same_as: str | None = None

    @property
    def rows(self) -> int:
        return sum(len(entry.modes) for entry in self.entries)


@dataclass(frozen=True)
class Gap:
    """Something that no row covers, or covers badly. `why` says what is counted, `items` what was found."""

    key: str
    title: str
    why: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """What a checkout's workflow covers. `checkout` names it for people, without a path of this machine."""

    checkout: str
    workflow: str
    labels: tuple[Label, ...]
    gaps: tuple[Gap, ...]

    def entries(self) -> list[tuple[Label, Entry]]:
        return [(label, entry) for label in self.labels for entry in label.entries]

    def trained(self) -> list[Facts]:
        return trained_facts(self.labels)

    def public(self) -> dict[str, Any]:
        """The content of `--format json`."""
        return {
            "checkout": self.checkout,
            "workflow": self.workflow,
            "labels": [_public_label(label) for label in self.labels],
            "backends": {name: asdict(found) for name, found in summary(self).items()},
            "gaps": [asdict(gap) for gap in self.gaps],
        }


@dataclass(frozen=True)
class Backend:
    """What the rows of one training backend cover together."""

    rows: int
    dense: tuple[str, ...]
    moe: tuple[str, ...]
    algorithms: tuple[str, ...]
    layouts: tuple[str, ...]
    placements: tuple[str, ...]
    pd: tuple[str, ...]
    features: tuple[str, ...]


def labels(rows: Sequence[Row], read: Read) -> tuple[Label, ...]:
    """The labels of a workflow's rows, each test's source read once for each way in which a row runs it."""
    known: dict[tuple[Any, ...], Facts] = {}
    found: list[Label] = []
    for name in dict.fromkeys(row.label for row in rows):
        of_label = [row for row in rows if row.label == name]
        entries = []
        for test in dict.fromkeys(row.test for row in of_label if row.test):
            modes = tuple(_mode(row, read, known) for row in of_label if row.test == test)
            entries.append(Entry(test, modes, missing=read(test) is None))
        if entries or of_label[0].dynamic:  # a job that only finds out what another is to run has no tests
            found.append(_label(of_label, tuple(entries), found))
    return tuple(found)


def trained_facts(labels: Sequence[Label]) -> list[Facts]:
    """The facts of every row that trains."""
    modes = [mode for label in labels for entry in label.entries for mode in entry.modes]
    return [mode.facts for mode in modes if mode.facts.kind == E2E]


def summary(coverage: Coverage) -> dict[str, Backend]:
    """By training backend."""
    trained = coverage.trained()
    return {
        name: _backend([facts for facts in trained if name in facts.backends])
        for name in dict.fromkeys(name for facts in trained for name in facts.backends)
    }


def _backend(of: Sequence[Facts]) -> Backend:
    models = {facts.model.name: facts.model.moe for facts in of if facts.model}
    placed = [(facts.pd, place) for facts in of for place in facts.placements]
    return Backend(
        rows=len(of),
        dense=tuple(name for name, moe in models.items() if not moe),
        moe=tuple(name for name, moe in models.items() if moe),
        algorithms=tuple(dict.fromkeys(name for facts in of for name in facts.algorithms)),
        layouts=tuple(dict.fromkeys(name for facts in of for name in facts.layouts)),
        placements=tuple(dict.fromkeys(place for _, place in placed)),
        pd=tuple(dict.fromkeys(place for pd, place in placed if pd)),
        features=tuple(dict.fromkeys(words for facts in of for words in facts.features)),
    )


def _label(rows: Sequence[Row], entries: tuple[Entry, ...], before: Sequence[Label]) -> Label:
    first = rows[0]
    same = next((other.label for other in before if entries and _runs(other.entries) == _runs(entries)), None)
    images = tuple(dict.fromkeys(row.image for row in rows if row.image))
    return Label(first.label, first.job, first.trigger, first.runner, images, entries, first.dynamic, same)


def _runs(entries: Sequence[Entry]) -> list[tuple[str, str, int | None]]:
    return [(entry.test, mode.args, mode.gpus) for entry in entries for mode in entry.modes]


def _mode(row: Row, read: Read, known: dict[tuple[Any, ...], Facts]) -> Mode:
    key = (row.test, row.args, tuple(sorted(row.env.items())))
    if key not in known:
        source = read(row.test or "") or ""
        reading = read_test(source, env=row.env, args=_words(row.args), helpers=read, path=row.test or "")
        known[key] = facts(reading, read)
    return Mode(row.row, row.args, row.gpus, known[key])


def _words(args: str) -> list[str]:
    try:
        return shlex.split(args)
    except ValueError:
        return args.split()


def _public_label(label: Label) -> dict[str, Any]:
    return {
        "label": label.label,
        "job": label.job,
        "trigger": label.trigger,
        "runner": label.runner,
        "images": label.images,
        "rows": label.rows,
        "dynamic": label.dynamic,
        "same_as": label.same_as,
        "tests": [
            {
                "test": entry.test,
                "gpus": entry.gpus,
                "missing": entry.missing,
                "rows": [
                    {"row": mode.row, "args": mode.args, "gpus": mode.gpus, **_public_facts(mode.facts)}
                    for mode in entry.modes
                ],
            }
            for entry in label.entries
        ],
    }


def _public_facts(found: Facts) -> dict[str, Any]:
    shown = asdict(found)
    shown["trained_gpus"] = shown.pop("gpus")
    shown["flags"] = {flag: list(values) for flag, values in found.flags}
    if found.model:
        shown["model"]["kind"] = found.model.kind
    return shown
