"""What a checkout covers: labels with their tests, and the backends together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.architecture import Read
from ci_tasks.features.coverage.facts import E2E, RowFacts, facts
from ci_tasks.features.recorder.records import Recording, shell_split
from ci_tasks.workflow.model import Row

AT_ONCE = 4  # tests that are recorded side by side
Record = Callable[[str, Sequence[str], Mapping[str, str]], Recording]
TestStart = tuple[str, str, tuple[tuple[str, str], ...]]  # test, arguments, environment


@dataclass(frozen=True)
class RowCoverage:
    row: str
    args: str
    gpus: int | None
    facts: RowFacts


@dataclass(frozen=True)
class CoveredTest:
    """A test of a label, with the rows that run it. `missing` says that the checkout has no such file."""

    path: str
    rows: tuple[RowCoverage, ...]
    missing: bool = False

    @property
    def facts(self) -> RowFacts:
        """Those of the first row that trains, if any does; `features` has those of all."""
        return next((row.facts for row in self.rows if row.facts.kind == E2E), self.rows[0].facts)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({row.gpus for row in self.rows if row.gpus is not None}))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature for row in self.rows for feature in row.facts.features))

    def own(self, row: RowCoverage) -> tuple[str, ...]:
        """What a row exercises and not every other row of the test does."""
        return tuple(
            feature for feature in row.facts.features if any(feature not in other.facts.features for other in self.rows)
        )


@dataclass(frozen=True)
class LabelCoverage:
    """A label and its tests. `dynamic` is the expression of a matrix that only a run of another job gives."""

    label: str
    job: str
    trigger: str | None
    runner: str
    images: tuple[str, ...]
    tests: tuple[CoveredTest, ...]
    dynamic: str | None = None
    same_as: str | None = None

    @property
    def row_count(self) -> int:
        return sum(len(test.rows) for test in self.tests)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({number for test in self.tests for number in test.gpus}))


@dataclass(frozen=True)
class CheckoutCoverage:
    """What a checkout's workflow covers. `checkout` names it for people, without a path of this machine."""

    checkout: str
    workflow: str
    labels: tuple[LabelCoverage, ...]

    def tests(self) -> list[tuple[LabelCoverage, CoveredTest]]:
        return [(label, test) for label in self.labels for test in label.tests]

    def trained(self) -> list[RowFacts]:
        return [row.facts for _, test in self.tests() for row in test.rows if row.facts.kind == E2E]

    def public(self) -> dict[str, Any]:
        labels = tuple(_public_label(label) for label in self.labels)
        return encode(PublicCoverage(self.checkout, self.workflow, labels, summary(self)), versioned=False)


@dataclass(frozen=True)
class BackendCoverage:
    """What the rows of one training backend cover together."""

    rows: int
    dense: tuple[str, ...]
    moe: tuple[str, ...]
    algorithms: tuple[str, ...]
    layouts: tuple[str, ...]
    placements: tuple[str, ...]
    pd: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class PublicCoverage:
    """As `coverage --json` prints it: `labels` with their tests and rows, and what the rows of each training backend
    cover together."""

    checkout: str
    workflow: str
    labels: tuple[Mapping[str, Any], ...]
    backends: Mapping[str, BackendCoverage]


def labels(rows: Sequence[Row], read: Read, record: Record) -> tuple[LabelCoverage, ...]:
    """The labels of a workflow's rows; `record` gives what a test launches, once for each way to start it."""
    starts = list(dict.fromkeys(_start(row) for row in rows if row.test))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        recordings = pool.map(lambda start: record(start[0], shell_split(start[1]), dict(start[2])), starts)
        facts_by_start = {start: facts(recording, read) for start, recording in zip(starts, recordings, strict=True)}
    coverages: list[LabelCoverage] = []
    for name in dict.fromkeys(row.label for row in rows):
        of_label = [row for row in rows if row.label == name]
        tests = []
        for path in dict.fromkeys(row.test for row in of_label if row.test):
            covered = [
                RowCoverage(row.row, row.args, row.gpus, facts_by_start[_start(row)])
                for row in of_label
                if row.test == path
            ]
            tests.append(CoveredTest(path, tuple(covered), missing=read(path) is None))
        if tests or of_label[0].dynamic:  # a job that only finds out what another is to run has no tests
            coverages.append(_label(of_label, tuple(tests), coverages))
    return tuple(coverages)


def summary(coverage: CheckoutCoverage) -> dict[str, BackendCoverage]:
    trained = coverage.trained()
    return {
        name: _backend([facts for facts in trained if name in facts.backends])
        for name in dict.fromkeys(name for facts in trained for name in facts.backends)
    }


def _backend(of: Sequence[RowFacts]) -> BackendCoverage:
    models = {facts.model.name: facts.model.moe for facts in of if facts.model}
    placed = [(facts.pd, place) for facts in of for place in facts.placements]
    return BackendCoverage(
        rows=len(of),
        dense=tuple(name for name, moe in models.items() if not moe),
        moe=tuple(name for name, moe in models.items() if moe),
        algorithms=tuple(dict.fromkeys(name for facts in of for name in facts.algorithms)),
        layouts=tuple(dict.fromkeys(name for facts in of for name in facts.layouts)),
        placements=tuple(dict.fromkeys(place for _, place in placed)),
        pd=tuple(dict.fromkeys(place for pd, place in placed if pd)),
        features=tuple(dict.fromkeys(feature for facts in of for feature in facts.features)),
    )


def _label(rows: Sequence[Row], tests: tuple[CoveredTest, ...], before: Sequence[LabelCoverage]) -> LabelCoverage:
    first = rows[0]
    same = next((other.label for other in before if tests and _runs(other.tests) == _runs(tests)), None)
    images = tuple(dict.fromkeys(row.image for row in rows if row.image))
    return LabelCoverage(first.label, first.job, first.trigger, first.runner, images, tests, first.dynamic, same)


def _runs(tests: Sequence[CoveredTest]) -> list[tuple[str, str, int | None]]:
    return [(test.path, row.args, row.gpus) for test in tests for row in test.rows]


def _start(row: Row) -> TestStart:
    return row.test or "", row.args, tuple(sorted(row.env.items()))


def _public_label(label: LabelCoverage) -> dict[str, Any]:
    return {
        "label": label.label,
        "job": label.job,
        "trigger": label.trigger,
        "runner": label.runner,
        "images": label.images,
        "rows": label.row_count,
        "dynamic": label.dynamic,
        "same_as": label.same_as,
        "tests": [
            {
                "test": test.path,
                "gpus": test.gpus,
                "missing": test.missing,
                "rows": [
                    {"row": row.row, "args": row.args, "gpus": row.gpus, **_public_facts(row.facts)}
                    for row in test.rows
                ],
            }
            for test in label.tests
        ],
    }


def _public_facts(row_facts: RowFacts) -> dict[str, Any]:
    shown = asdict(row_facts)
    shown["trained_gpus"] = shown.pop("gpus")
    shown["flags"] = {flag: list(values) for flag, values in row_facts.flags}
    if row_facts.model:
        shown["model"]["kind"] = row_facts.model.kind
    return shown
