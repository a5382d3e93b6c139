"""Two runs → what went in differently, and what came out differently.

`old` is the earlier state, `new` the one that is asked about. Metrics of one step are compared bit for bit. Whether a
difference is more than scatter is not decided here: one run of a side shows none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import one_line
from ci_tasks.features.difference.runs import AXES, ENV, IMAGE, RunSide
from ci_tasks.features.difference.values import ValueDifference, compare_values, of_lowest_rank
from ci_tasks.known_secrets import MASK, is_private
from ci_tasks.records import FAILED, PASSED
from ci_tasks.report.table import Table, paragraph

NO_VALUE = "–"  # a name that one side does not have
_HASH = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class Difference:
    """`axis` is one of AXES, or status, failure and metric of what came out; `name` is the package, variable,
    file or metric. `step` is the first at which a metric's values differ."""

    axis: str
    name: str
    old: str
    new: str
    step: int | None = None


@dataclass(frozen=True)
class RunDifference:
    """Two runs side by side. `same` are axes that were seen on both sides and are equal; `not_seen` are those that a
    side did not show. `next_step` is the command that finds the commit which broke the row."""

    old: str
    new: str
    inputs: tuple[Difference, ...]
    outputs: tuple[Difference, ...]
    same: tuple[str, ...]
    not_seen: tuple[str, ...]
    next_step: str


def compare_runs(old: RunSide, new: RunSide) -> RunDifference:
    before, after = old.inputs(), new.inputs()
    seen = [axis for axis in AXES if axis in before and axis in after]
    inputs = [each for axis in seen for each in _differences(axis, before[axis], after[axis])]
    axes = dict.fromkeys(each.axis for each in inputs)
    return RunDifference(
        old.record.id,
        new.record.id,
        tuple(inputs),
        tuple(compare_outputs(old, new)),
        tuple(axis for axis in seen if axis not in axes),
        tuple(axis for axis in AXES if axis not in seen),
        _next_step(old, new),
    )


def _differences(axis: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Difference]:
    for name in {**old, **new}:
        before, after = old.get(name, NO_VALUE), new.get(name, NO_VALUE)
        # A digest names an image, whatever the tag or the mirror before it.
        both = [value.partition("@")[2] or value for value in (before, after)] if axis == IMAGE else [before, after]
        if both[0] == both[1]:
            continue
        if axis == ENV and (is_private(name, before) or is_private(name, after)):
            # Of what may be a secret only that it differs: a comparison is shown to others.
            before, after = (value if value == NO_VALUE else MASK for value in (before, after))
            after = f"{MASK}, another value" if before == after else after
        yield Difference(axis, name, before, after)


def compare_outputs(old: RunSide, new: RunSide) -> Iterator[Difference]:
    first, second = old.record, new.record
    if first.status != second.status:
        yield Difference("status", "status", first.status, second.status)
    if (first.triage and first.triage.signature) != (second.triage and second.triage.signature):
        lines = [run.triage.line if run.triage else NO_VALUE for run in (first, second)]
        yield Difference("failure", "failure", lines[0], lines[1])
    first_steps: dict[str, ValueDifference] = {}
    for each in compare_values("", of_lowest_rank(old.logged), "", of_lowest_rank(new.logged)).differences:
        first_steps.setdefault(each.name, each)
    for name, each in first_steps.items():
        yield Difference("metric", name, str(each.old), str(each.new), int(each.step))


def _next_step(old: RunSide, new: RunSide) -> str:
    """The command that finds the commit; "" if the row did not break, or no option sets its code alone. What a record
    of others says becomes no option."""
    first, second = old.record, new.record
    before, after = first.checkout, second.checkout
    is_one_row = (first.label, first.row) == (second.label, second.row) and not second.label.startswith("-")
    if not (is_one_row and before and after and before.head != after.head) or before.dirty or after.overlays:
        return ""
    if (first.status, second.status) != (PASSED, FAILED) or not _HASH.fullmatch(before.head):
        return ""
    ends = ["compare", "--base", before.head] if after.dirty else ["bisect", "--good", before.head, "--bad", after.head]
    words = [second.label, "--only", second.row, "--host", second.host or "local"]
    return shlex.join(["ci-tasks", ends[0], *words, *ends[1:]])


def text(old: RunSide, new: RunSide, result: RunDifference, width: int | None = None) -> list[str]:
    """As a person reads it in a terminal."""
    heads = [
        (word, run.record.id, f"{run.record.label} {run.record.row}", run.record.host or "", run.record.status)
        for word, run in (("old", old), ("new", new))
    ]
    lines = _table(heads, (), width)
    for title, differences in (("What came out differs:", result.outputs), ("What went in differs:", result.inputs)):
        rows = [
            (each.axis, each.name if each.step is None else f"{each.name} from step {each.step}", each.old, each.new)
            for each in differences
        ]
        lines += ["", title, "", *_table(rows, ("", "NAME", "OLD", "NEW"), width)] if rows else []
    lines += ["", *([f"to find the commit: {one_line(result.next_step)}"] if result.next_step else [])]
    lines += paragraph(f"The same: {', '.join(result.same) or 'nothing that was seen'}", width)
    return lines + (paragraph(f"Not seen: {', '.join(result.not_seen)}", width) if result.not_seen else [])


def _table(rows: Sequence[Sequence[str]], head: Sequence[str], width: int | None) -> list[str]:
    return Table([tuple(map(one_line, row)) for row in rows], head).text(width)
