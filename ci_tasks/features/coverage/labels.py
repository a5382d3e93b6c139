"""What a checkout covers: its labels with their tests and rows, and how two checkouts differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, some
from ci_tasks.features.coverage.facts import E2E, UNREAD, VACUOUS, Read, RowFacts, facts
from ci_tasks.features.recorder.records import Recording, shell_split
from ci_tasks.workflow.model import Row

AT_ONCE = 4  # tests that are recorded side by side
_MOST_LAYOUTS, _MOST_TESTS, _LONGEST = 8, 3, 160
_TOGETHER = ("models", "algorithms", "layouts", "placements", "features")  # what rows of a backend cover
Record = Callable[[str, Sequence[str], Mapping[str, str]], Recording]


@dataclass(frozen=True)
class RowCoverage:
    row: str
    args: str
    gpus: int | None
    facts: RowFacts


@dataclass(frozen=True)
class CoveredTest:
    """A test of a label, with the rows that run it. `missing` says that the checkout has no such file."""

    test: str
    rows: tuple[RowCoverage, ...]
    missing: bool = False

    @property
    def facts(self) -> RowFacts:
        """Those of the first row that trains, if any does; `coverage` has the features of all."""
        return next((row.facts for row in self.rows if row.facts.kind == E2E), self.rows[0].facts)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({row.gpus for row in self.rows if row.gpus is not None}))

    @property
    def coverage(self) -> list[str]:
        """What it covers, part by part; of unit tests what they say of themselves."""
        facts = self.facts
        if self.missing:
            return ["the checkout has no such file"]
        if facts.kind != E2E:
            return [_untrained(self.test, facts)]
        layouts = facts.layouts if len(facts.layouts) > 1 else [layout for layout in facts.layouts if layout != "DP"]
        shown = " / ".join(
            layout.replace(" + ", "+") if len(layouts) > 1 else layout for layout in layouts[:_MOST_LAYOUTS]
        )
        parts = [
            *facts.models,
            "/".join(facts.algorithms),
            f"layouts {shown}" if len(layouts) > 1 else shown,
            " then ".join(facts.placements),
            f"on {', '.join(map(str, facts.trained_gpus))} GPUs" if len(facts.trained_gpus) > 1 else "",
            f"{facts.trainings} trainings" if facts.trainings > 1 else "",
            *dict.fromkeys(feature for row in self.rows for feature in row.facts.features),
            "not seen to its end" if facts.problem else "",
        ]
        return [part for part in parts if part]

    @property
    def modes(self) -> list[str]:
        """Where several rows run it: what each is given, and what not every other row exercises."""
        lines = []
        for row in self.rows if len(self.rows) > 1 else ():
            own = [each for each in row.facts.features if any(each not in other.facts.features for other in self.rows)]
            args = f"`{row.args}`" if row.args else "no arguments"
            lines.append(f"{args}: {', '.join(own)}" if own else args)
        return lines


@dataclass(frozen=True)
class LabelCoverage:
    """A label and its tests; `commands` are what the steps run for tests, of a job whose rows name no test file.
    `dynamic` is the expression of a matrix that only a run of another job gives; `same_as` is an earlier label with the
    same rows."""

    label: str
    job: str
    trigger: str | None
    runner: str
    images: tuple[str, ...]
    tests: tuple[CoveredTest, ...]
    dynamic: str | None = None
    same_as: str | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckoutCoverage:
    """What a checkout's workflow covers. `checkout` names it for people, without a path of this machine."""

    checkout: str
    workflow: str
    labels: tuple[LabelCoverage, ...]

    def tests(self) -> list[tuple[LabelCoverage, CoveredTest]]:
        return [(label, test) for label in self.labels for test in label.tests]

    def rows(self) -> list[RowFacts]:
        return [row.facts for _, test in self.tests() for row in test.rows]

    def backends(self) -> dict[str, dict[str, Any]]:
        """How many rows each training backend has, by its name, and what they cover together."""
        trained = [row for row in self.rows() if row.kind == E2E]
        together = {}
        for backend in dict.fromkeys(backend for row in trained for backend in row.backends):
            own = [row for row in trained if backend in row.backends]
            values = {name: dict.fromkeys(value for row in own for value in getattr(row, name)) for name in _TOGETHER}
            together[backend] = {"rows": len(own), **{name: list(words) for name, words in values.items()}}
        return together

    def public(self) -> dict[str, Any]:
        labels = []
        for label in self.labels:
            shown = encode(label, versioned=False)
            for test, covered in zip(shown["tests"], label.tests, strict=True):
                test["gpus"] = list(covered.gpus)
                test["rows"] = [{**row, **row.pop("facts")} for row in test["rows"]]
            labels.append(shown)
        return encode(PublicCoverage(self.checkout, self.workflow, tuple(labels), self.backends()), versioned=False)


@dataclass(frozen=True)
class PublicCoverage:
    """As `coverage --json` prints it: `labels` with their tests and rows, and what the rows of each training backend
    cover together."""

    checkout: str
    workflow: str
    labels: tuple[Mapping[str, Any], ...]
    backends: Mapping[str, Mapping[str, Any]]


def labels(
    rows: Sequence[Row], read: Read, record: Record, commands: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[LabelCoverage, ...]:
    """The labels of a workflow's rows; `record` gives what a test launches, once for each way to start it. `commands`
    are those of jobs that run tests without naming one for each row."""
    starts = {_start(row): row for row in rows if row.test}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        recordings = pool.map(lambda row: record(row.test or "", shell_split(row.args), row.env), starts.values())
        known = {start: facts(recording, read) for start, recording in zip(starts, recordings, strict=True)}
    covered: list[LabelCoverage] = []
    for name in dict.fromkeys(row.label for row in rows):
        own = [row for row in rows if row.label == name]
        tests = tuple(
            CoveredTest(
                path,
                tuple(RowCoverage(row.row, row.args, row.gpus, known[_start(row)]) for row in own if row.test == path),
                missing=read(path) is None,
            )
            for path in dict.fromkeys(row.test for row in own if row.test)
        )
        first, run = own[0], () if tests else (commands or {}).get(own[0].job, ())
        if tests or run or first.dynamic:  # a job that only finds out what another is to run has no tests
            same = next((other.label for other in covered if tests and other.tests == tests), None)
            images = tuple(dict.fromkeys(row.image for row in own if row.image))
            about = (name, first.job, first.trigger, first.runner, images)
            covered.append(LabelCoverage(*about, tests, first.dynamic, same, run))
    return tuple(covered)


def _start(row: Row) -> tuple[Any, ...]:
    return (row.test, row.args, *row.env.items())


def _untrained(path: str, facts: RowFacts) -> str:
    name = path.rpartition("/")[2].removesuffix(".py").removeprefix("test_").replace("_", " ")
    sentence = re.split(r"(?<=[a-z0-9)`])[.:](?:\s|$)", facts.doc.replace("``", "`"), maxsplit=1)[0].strip()
    words = sentence.rstrip(".") if len(sentence) <= _LONGEST else sentence[: _LONGEST - 1].rstrip() + "…"
    if facts.kind == VACUOUS:
        return f"{words or name} (runs nothing: no `__main__`)"
    if facts.kind == UNREAD:
        return f"not seen: {facts.problem}"
    tests = [test.rpartition(".")[2].removeprefix("test_").replace("_", " ") for test in facts.tests]
    content = words or (f"{name}: {some(tests, _MOST_TESTS)}" if tests else name)
    return f"{content} ({counted(len(tests), 'test')})" if tests else content


@dataclass(frozen=True)
class ChangedTest:
    """A test that a label has before and after, with what only one of them covers; "" for nothing."""

    label: str
    test: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class CoverageDiff:
    """From one coverage to another. Rows are `label: row`; `gained` and `lost` is what the rows together exercise or no
    longer do."""

    before: str
    after: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    altered: tuple[ChangedTest, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]


def difference(before: CheckoutCoverage, after: CheckoutCoverage) -> CoverageDiff:
    old, new = _row_names(before), _row_names(after)
    had, has = ([each for row in side.rows() for each in row.exercised] for side in (before, after))
    return CoverageDiff(
        before=before.checkout,
        after=after.checkout,
        added=_without(new, old),
        removed=_without(old, new),
        altered=tuple(_altered(before, after)),
        gained=_without(has, had),
        lost=_without(had, has),
    )


def _row_names(coverage: CheckoutCoverage) -> list[str]:
    return [f"{label.label}: {row.row}" for label, test in coverage.tests() for row in test.rows]


def _without(some: Iterable[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in some if item not in others))


def _altered(before: CheckoutCoverage, after: CheckoutCoverage) -> Iterator[ChangedTest]:
    old = {(label.label, test.test): test for label, test in before.tests()}
    for label, test in after.tests():
        former = old.get((label.label, test.test), test)
        for what, earlier, later in (
            ("GPUs", [*map(str, former.gpus)], [*map(str, test.gpus)]),
            ("coverage", former.coverage, test.coverage),
            ("checks", [former.facts.checks], [test.facts.checks]),
        ):
            removed, added = ", ".join(_without(earlier, later)), ", ".join(_without(later, earlier))
            if removed or added:
                yield ChangedTest(label.label, test.test, what, removed, added)
