"""Two coverages → what a change adds, removes and alters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.coverage import CheckoutCoverage, CoveredTest
from ci_tasks.features.coverage.describe import parts


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

    @property
    def empty(self) -> bool:
        return not any((self.added, self.removed, self.altered, self.gained, self.lost))

    def public(self) -> dict[str, Any]:
        return asdict(self)


def difference(before: CheckoutCoverage, after: CheckoutCoverage) -> CoverageDiff:
    old, new = _rows(before), _rows(after)
    had, has = _exercised(before), _exercised(after)
    return CoverageDiff(
        before=before.checkout,
        after=after.checkout,
        added=_without(new, old),
        removed=_without(old, new),
        altered=tuple(_altered(before, after)),
        gained=_without(has, had),
        lost=_without(had, has),
    )


def _without(some: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    absent = set(others)
    return tuple(dict.fromkeys(item for item in some if item not in absent))


def _rows(coverage: CheckoutCoverage) -> list[str]:
    return [f"{label.label}: {row.row}" for label, test in coverage.tests() for row in test.rows]


def _exercised(coverage: CheckoutCoverage) -> list[str]:
    exercised: list[str] = []
    for facts in coverage.trained():
        exercised += [
            *([f"{facts.model.name} ({facts.model.kind})"] if facts.model else []),
            *facts.algorithms,
            *(f"layout {layout}" for layout in facts.layouts),
            *facts.placements,
            *(["PD"] if facts.pd else []),
            *facts.features,
        ]
    return exercised


def _altered(before: CheckoutCoverage, after: CheckoutCoverage) -> Iterable[ChangedTest]:
    old = {(label.label, test.path): test for label, test in before.tests()}
    for label, test in after.tests():
        former = old.get((label.label, test.path))
        if former is None:
            continue
        for what, earlier, later in zip(_WHAT, _aspects(former), _aspects(test), strict=True):
            if earlier != later:
                removed, added = _without(earlier, later), _without(later, earlier)
                yield ChangedTest(label.label, test.path, what, ", ".join(removed), ", ".join(added))


_WHAT = ("GPUs", "coverage", "checks")


def _aspects(test: CoveredTest) -> tuple[list[str], list[str], list[str]]:
    return [str(number) for number in test.gpus], parts(test), [test.facts.checks.description]
