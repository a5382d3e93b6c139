"""Two runs bit for bit: the first step, metric and rank whose numbers differ, as the logs print them. Pure.

A line is of the rank that stands before it (`[rank3]:`, `rank=3`); without one, of no rank in particular.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ci_tasks.features.difference.outputs import parting_step
from ci_tasks.features.numbers.result import ExactComparison, Parting, as_json
from ci_tasks.results.metrics import Series

_RANK = re.compile(rb"(?i)^.{0,60}?\brank[ _:=]?(\d{1,6})\b")
_MAY_BE_METRICS = re.compile(rb"(?i)step|rollout|eval")

SeriesByRank = Mapping[str, tuple[Series, ...]]


def lines_by_rank(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    """The lines that may hold metrics, by rank."""
    ranks: dict[str, list[bytes]] = {}
    for line in lines:
        if _MAY_BE_METRICS.search(line):
            rank = _RANK.match(line)
            ranks.setdefault(rank[1].decode() if rank else "", []).append(line)
    return ranks


def compare_exactly(old_id: str, old: SeriesByRank, new_id: str, new: SeriesByRank) -> ExactComparison:
    """The earliest step counts first, then the lowest rank, then the metrics' order."""
    partings: list[Parting] = []
    matched = 0
    for rank in sorted(old, key=lambda rank: (len(rank), rank)):
        others = {series.name: series for series in new.get(rank, ())}
        for series in old[rank]:
            other = others.get(series.name)
            if other is None:
                continue
            matched += sum(
                len({*dict(one)} & {*dict(two)}) for one, two in zip(series.parts, other.parts, strict=False)
            )
            if (found := parting_step(series, other)) is not None:
                training, step, before, after = found
                partings.append(Parting(series.name, rank, training, step, as_json(before), as_json(after)))
    first = min(partings, key=lambda parting: (parting.training, parting.step), default=None)
    return ExactComparison(old_id, new_id, matched, first, _count(old) + _count(new) - 2 * matched)


def _count(ranks: SeriesByRank) -> int:
    return sum(len(part) for every in ranks.values() for series in every for part in series.parts)
