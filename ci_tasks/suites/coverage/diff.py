"""Two maps → what a change adds, loses and alters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ci_tasks.suites.coverage.coverage import Coverage, Entry
from ci_tasks.suites.coverage.describe import parts


@dataclass(frozen=True)
class Altered:
    """A test that both maps have in a label, and what only one of them says of it; "" for nothing."""

    label: str
    test: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """From one map to another. Rows are `label: row`; `gained` and `lost` is what the rows together exercise or no
    longer do; gaps are `title: item`."""

    before: str
    after: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    altered: tuple[Altered, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    opened: tuple[str, ...]
    closed: tuple[str, ...]

    @property
    def empty(self) -> bool:
        return not any((self.added, self.removed, self.altered, self.gained, self.lost, self.opened, self.closed))

    def public(self) -> dict[str, Any]:
        return asdict(self)


def difference(before: Coverage, after: Coverage) -> Difference:
    old, new = _rows(before), _rows(after)
    had, has = _exercised(before), _exercised(after)
    was, now = _gaps(before), _gaps(after)
    return Difference(
        before=before.checkout,
        after=after.checkout,
        added=_without(new, old),
        removed=_without(old, new),
        altered=tuple(_altered(before, after)),
        gained=_without(has, had),
        lost=_without(had, has),
        opened=_without(now, was),
        closed=_without(was, now),
    )


def _without(some: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    absent = set(others)
    return tuple(dict.fromkeys(item for item in some if item not in absent))


def _rows(coverage: Coverage) -> list[str]:
    return [f"{label.label}: {mode.row}" for label, entry in coverage.entries() for mode in entry.modes]


def _gaps(coverage: Coverage) -> list[str]:
    return [f"{gap.title}: {item}" for gap in coverage.gaps for item in gap.items]


def _exercised(coverage: Coverage) -> list[str]:
    found: list[str] = []
    for facts in coverage.trained():
        found += [
            *([f"{facts.model.name} ({facts.model.kind})"] if facts.model else []),
            *facts.algorithms,
            *(f"layout {layout}" for layout in facts.layouts),
            *facts.placements,
            *(["PD"] if facts.pd else []),
            *facts.features,
        ]
    return found


def _altered(before: Coverage, after: Coverage) -> Iterable[Altered]:
    old = {(label.label, entry.test): entry for label, entry in before.entries()}
    for label, entry in after.entries():
        former = old.get((label.label, entry.test))
        if former is None:
            continue
        for what, one, other in zip(_WHAT, _said(former), _said(entry), strict=True):
            if one != other:
                gone, new = _without(one, other), _without(other, one)
                yield Altered(label.label, entry.test, what, ", ".join(gone), ", ".join(new))


_WHAT = ("GPUs", "coverage", "checks")


def _said(entry: Entry) -> tuple[list[str], list[str], list[str]]:
    return [str(number) for number in entry.gpus], parts(entry), [entry.facts.checks.words]
