"""A comparison of two runs as text and as markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ci_tasks.errors import one_line
from ci_tasks.features.difference.causes import RULE
from ci_tasks.features.difference.diff_runs import SideBySide
from ci_tasks.features.difference.outputs import FAILURE
from ci_tasks.features.difference.result import COMMIT, InputDifference, OutputDifference, RunDifference
from ci_tasks.report.table import Table, cell, code, paragraph

_MOST_OF_AXIS = 12  # differences of one axis that the terminal shows
_HEAD = ("", "OLD", "NEW")


def text(compared: SideBySide, width: int | None = None) -> list[str]:
    result = compared.difference
    lines = [*_sides(compared), *paragraphs([one_line(note) for note in result.notes], width), ""]
    if result.outputs:
        lines += ["What came out differs:", "", *_outputs(result, width), ""]
    else:
        lines += ["Nothing that came out of them differs, as far as both sides show it.", ""]
    if result.inputs:
        lines += ["What went in differs:", "", *_inputs(result, width), ""]
    elif not result.not_seen:
        lines += ["Nothing that went in differs.", ""]
    if result.commits:
        lines += ["Commits between them, newest first:", *(f"  {one_line(commit)}" for commit in result.commits), ""]
    if result.causes:
        lines += [*paragraph(f"Likely causes, in this order: {RULE}.", width)]
        for number, cause in enumerate(result.causes, 1):
            lines += paragraph(one_line(f"{number}. {cause.axis}: {cause.why}"), width, "   ")
            lines += [f"   to prove it: {one_line(cause.proof)}"] if cause.proof else []
        lines.append("")
    elif result.outputs:
        lines += ["No input that was seen on both sides differs: what is not seen may, or the row is flaky.", ""]
    lines += paragraph(one_line(f"The same: {', '.join(result.same) or 'nothing that was seen'}"), width)
    lines += paragraph(one_line(f"Not seen: {'; '.join(result.not_seen)}"), width) if result.not_seen else []
    return lines


def paragraphs(lines: Sequence[str], width: int | None) -> list[str]:
    return [wrapped for line in lines for wrapped in paragraph(line, width)]


def markdown(compared: SideBySide) -> list[str]:
    result = compared.difference
    lines = [f"### {cell(result.old)} → {cell(result.new)}", ""]
    for title, rows in (
        ("What came out", [(_name(each), each.old, each.new, each.note) for each in result.outputs]),
        ("What went in", [(each.axis, each.name, each.old, each.new) for each in result.inputs]),
    ):
        head = ("", "old", "new", "") if title == "What came out" else ("axis", "name", "old", "new")
        if rows:
            lines += [f"**{title}**", "", _row(head), _row(("---",) * 4), *map(_row, rows), ""]
    for number, cause in enumerate(result.causes, 1):
        lines.append(
            f"{number}. **{cell(cause.axis)}**: {cell(cause.why)}" + (f" {code(cause.proof)}" if cause.proof else "")
        )
    lines += ["", f"The same: {cell(', '.join(result.same) or 'nothing that was seen')}."]
    lines += [f"Not seen: {cell('; '.join(result.not_seen))}."] if result.not_seen else []
    return lines


def _sides(compared: SideBySide) -> list[str]:
    return Table(
        [
            tuple(
                map(
                    one_line,
                    (
                        word,
                        run.id,
                        f"{run.label} {run.row}".strip(),
                        run.host,
                        run.status,
                        run.inputs.get(COMMIT, {}).get("commit", ""),
                    ),
                )
            )
            for word, run in (("old", compared.old), ("new", compared.new))
        ]
    ).text(None)


def _outputs(result: RunDifference, width: int | None) -> list[str]:
    """A failure is a sentence: it stands below its side, numbers stand in columns."""
    sentences = [each for each in result.outputs if each.kind == FAILURE]
    body = [
        tuple(map(one_line, (_name(each), each.old, each.new, each.note)))
        for each in result.outputs
        if each not in sentences
    ]
    lines = Table(body, (*_HEAD, "")).text(width) if body else []
    for each in sentences:
        for word, said in (("old", each.old), ("new", each.new)):
            lines += paragraph(f"failure, {word}: {one_line(said)}", width, "  ")
    return lines


def _inputs(result: RunDifference, width: int | None) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for axis, group in groupby(result.inputs, key=lambda each: each.axis):
        every = list(group)
        rows += [_input(each) for each in every[:_MOST_OF_AXIS]]
        if len(every) > _MOST_OF_AXIS:
            rows.append((axis, f"and {len(every) - _MOST_OF_AXIS} more: --markdown lists all", "", ""))
    return Table(rows, ("AXIS", "NAME", "OLD", "NEW")).text(width)


def _input(each: InputDifference) -> tuple[str, ...]:
    return tuple(map(one_line, (each.axis, each.name, each.old, each.new)))


def _name(each: OutputDifference) -> str:
    return f"{each.name} from step {each.step}" if each.step is not None else each.name


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(cell, cells))} |"
