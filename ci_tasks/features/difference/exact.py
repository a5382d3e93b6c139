"""Two logs bit for bit: the first step, metric and rank whose values differ, and the checkpoint files. Pure."""

from __future__ import annotations

from ci_tasks.errors import counted, one_line, some
from ci_tasks.features.difference.logged import LoggedResults
from ci_tasks.features.difference.outputs import first_divergence
from ci_tasks.features.difference.result import (
    CONTRADICTED,
    NOT_SEEN,
    SHOWN,
    Divergence,
    ExactComparison,
    as_json,
)

_MOST_FILES = 8  # that the terminal names


def compare_exactly(old_id: str, old: LoggedResults, new_id: str, new: LoggedResults) -> ExactComparison:
    """The earliest step counts first, then the lowest rank, then the metrics' order."""
    diverging: list[Divergence] = []
    values = 0
    for rank, several in old.series.items():
        others = {series.name: series for series in new.series.get(rank, ())}
        for series in several:
            other = others.get(series.name)
            if other is None:
                continue
            parts = zip(series.parts, other.parts, strict=False)
            values += sum(len(dict(one).keys() & dict(two).keys()) for one, two in parts)
            if (found := first_divergence(series, other)) is not None:
                training, step, before, after = found
                diverging.append(Divergence(series.name, rank, training, step, as_json(before), as_json(after)))
    first = min(diverging, key=lambda each: (each.training, each.step), default=None)
    both = old.files.keys() & new.files.keys()
    files = tuple(path for path in old.files if path in both and old.files[path] != new.files[path])
    unmatched = _values(old) + _values(new) - 2 * values + len(old.files.keys() ^ new.files.keys())
    outcome = CONTRADICTED if first or files or unmatched else SHOWN if values or both else NOT_SEEN
    return ExactComparison(old_id, new_id, outcome, values, len(both), first, files, unmatched)


def text(compared: ExactComparison) -> list[str]:
    pair = one_line(f"{compared.old} and {compared.new}")
    if compared.outcome == NOT_SEEN:
        return [f"{pair}: not seen: their logs have no metric by step and no checkpoint hash"]
    files = counted(compared.hashes, "checkpoint file") if compared.hashes else "no checkpoint hash was seen"
    seen = f"{counted(compared.values, 'metric value')}, {files}"
    if compared.outcome == SHOWN:
        return [f"{pair} are equal, bit for bit: {seen}"]
    lines: list[str] = []
    if (first := compared.first) is not None:
        rank = f", rank {first.rank}" if first.rank else ""
        training = f" of training {first.training}" if first.training > 1 else ""
        at = f"step {first.step}{training}{rank}"
        lines.append(f"metrics diverge at {at}: {first.name} {first.old} → {first.new}")
    if compared.files:
        lines.append(f"checkpoint files differ: {some(compared.files, _MOST_FILES)}")
    if compared.unmatched:
        lines.append(f"only one of them has {counted(compared.unmatched, 'value')}")
    return [f"{pair} are not equal; compared: {seen}", *(f"  {one_line(line)}" for line in lines)]


def _values(results: LoggedResults) -> int:
    return sum(len(part) for several in results.series.values() for series in several for part in series.parts)
