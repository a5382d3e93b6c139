"""Features by label: the coverage of a checkout as one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.checks import ASSERTS, IN_RUN, SMOKE, UNIT
from ci_tasks.features.coverage.coverage import CheckoutCoverage, LabelCoverage
from ci_tasks.features.coverage.facts import E2E, RowFacts

_STRONGEST_FIRST = (ASSERTS, IN_RUN, UNIT, SMOKE)
OTHER = "Other tests"  # those that train nothing
_ABSENT = ("backends", "options")  # gaps that are features themselves, which no row has


@dataclass(frozen=True)
class MatrixCell:
    """How many rows of a label have a feature, and what the strongest of their checks is."""

    rows: int
    check: str


@dataclass(frozen=True)
class FeatureRow:
    """A feature, a cell for each label (None where no row of it has it), and the key of the gap that it is in."""

    feature: str
    cells: tuple[MatrixCell | None, ...]
    gap: str = ""


@dataclass(frozen=True)
class CoverageMatrix:
    """`groups`: what the features are → the features, in the order in which rows have them. `labels` are those with
    known rows."""

    labels: tuple[LabelCoverage, ...]
    groups: Mapping[str, Sequence[FeatureRow]]

    @property
    def features(self) -> list[FeatureRow]:
        return [row for group, rows in self.groups.items() if group != OTHER for row in rows]

    @property
    def covered(self) -> int:
        return sum(any(row.cells) for row in self.features)

    @property
    def smoke_only(self) -> int:
        return sum(any(row.cells) and bool(row.gap) for row in self.features)

    @property
    def absent(self) -> int:
        return sum(not any(row.cells) for row in self.features)


def matrix(coverage: CheckoutCoverage) -> CoverageMatrix:
    labels = tuple(label for label in coverage.labels if not label.dynamic)
    checks: dict[tuple[str, str], list[list[str]]] = {}  # (group, feature) → for each label its rows' checks
    for at, label in enumerate(labels):
        for test in label.tests:
            for row in test.rows:
                for key in dict.fromkeys(_features(row.facts)):
                    checks.setdefault(key, [[] for _ in labels])[at].append(row.facts.checks.level)
    gap_of = {item: gap.key for gap in coverage.gaps if gap.key == "unasserted" for item in gap.items}
    groups: dict[str, list[FeatureRow]] = {}
    for (group, feature), by_label in checks.items():
        cells = tuple(_cell(levels) if levels else None for levels in by_label)
        groups.setdefault(group, []).append(FeatureRow(feature, cells, gap_of.get(feature, "")))
    groups = {group: groups[group] for group in _GROUPS if group in groups}
    absent = [(gap.key, item) for key in _ABSENT for gap in coverage.gaps if gap.key == key for item in gap.items]
    if absent:
        groups["In no row"] = [FeatureRow(item, (None,) * len(labels), key) for key, item in absent]
    return CoverageMatrix(labels, groups)


_GROUPS = ("Algorithms", "Dense models", "MoE models", "Layouts", "Placement", "Features", OTHER)


def _features(facts: RowFacts) -> Iterator[tuple[str, str]]:
    if facts.kind != E2E:
        yield OTHER, facts.kind
        return
    yield from (("Algorithms", name) for name in facts.algorithms)
    if facts.model:
        yield "MoE models" if facts.model.moe else "Dense models", facts.model.name
    yield from (("Layouts", name) for name in facts.layouts)
    yield from (("Placement", name) for name in (*facts.placements, *(("PD",) if facts.pd else ())))
    yield from (("Features", name) for name in facts.features)


def _cell(levels: Sequence[str]) -> MatrixCell:
    return MatrixCell(len(levels), next((level for level in _STRONGEST_FIRST if level in levels), levels[0]))
