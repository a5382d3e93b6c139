"""A comparison of two runs as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ci_tasks.errors import one_line
from ci_tasks.features.difference.compare import FAILURE, RULE, InputDifference, RunDifference
from ci_tasks.features.difference.sides import COMMIT, RunSide
from ci_tasks.report.table import Table, paragraph

_MOST_OF_AXIS = 12  # differences of one axis; --json has all


def text(old: RunSide, new: RunSide, result: RunDifference, width: int | None = None) -> list[str]:
    heads = [
        (
            word,
            run.id,
            f"{run.label} {run.row}".strip(),
            run.host,
            run.status,
            run.inputs.get(COMMIT, {}).get("commit", ""),
        )
        for word, run in (("old", old), ("new", new))
    ]
    lines = [*Table(_clean(heads)).text(width), *(line for note in result.notes for line in _wrapped(note, width)), ""]
    if result.outputs:
        lines += ["What came out differs:", "", *_outputs(result, width), ""]
    else:
        lines += ["Nothing that came out of them differs, as far as both sides show it.", ""]
    if result.inputs:
        rows = [row for _, group in groupby(result.inputs, key=lambda each: each.axis) for row in _axis([*group])]
        lines += ["What went in differs:", "", *Table(_clean(rows), ("AXIS", "NAME", "OLD", "NEW")).text(width), ""]
    elif not result.not_seen:
        lines += ["Nothing that went in differs.", ""]
    if result.commits:
        lines += ["Commits between them, newest first:", *(f"  {one_line(commit)}" for commit in result.commits), ""]
    if result.causes:
        lines += _wrapped(f"Likely causes, in this order: {RULE}.", width)
    elif result.outputs:
        lines += ["No input that was seen on both sides differs: what is not seen may, or the row is flaky.", ""]
    for number, cause in enumerate(result.causes, 1):
        lines += _wrapped(f"{number}. {cause.axis}: {cause.why}", width)
        lines += [f"   to prove it: {one_line(cause.proof)}"] if cause.proof else []
    lines += ["", *_wrapped(f"The same: {', '.join(result.same) or 'nothing that was seen'}", width)]
    return lines + (_wrapped(f"Not seen: {'; '.join(result.not_seen)}", width) if result.not_seen else [])


def _outputs(result: RunDifference, width: int | None) -> list[str]:
    """A failure is a sentence: it stands below the table."""
    rows = [
        (f"{each.name} from step {each.step}" if each.step is not None else each.name, each.old, each.new, each.note)
        for each in result.outputs
        if each.kind != FAILURE
    ]
    lines = Table(_clean(rows), ("", "OLD", "NEW", "")).text(width) if rows else []
    for each in result.outputs:
        if each.kind == FAILURE:
            lines += [*_wrapped(f"failure, old: {each.old}", width), *_wrapped(f"failure, new: {each.new}", width)]
    return lines


def _axis(every: Sequence[InputDifference]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(each.axis, each.name, each.old, each.new) for each in every[:_MOST_OF_AXIS]]
    more = len(every) - _MOST_OF_AXIS
    return rows + ([(every[0].axis, f"and {more} more: --json lists all", "", "")] if more > 0 else [])


def _clean(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return [tuple(map(one_line, row)) for row in rows]


def _wrapped(line: str, width: int | None) -> list[str]:
    return paragraph(one_line(line), width)
