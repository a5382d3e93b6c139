"""The table of `jobs`: the labels, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ci_tasks.report.table import Table

if TYPE_CHECKING:
    from ci_tasks.workflow.model import Row
    from ci_tasks.workflow.rows import LabelStart


def jobs(rows: Sequence[Row], width: int | None = None) -> list[str]:
    """A line for each label, then each row; an image or a PR label that differs within a label has a column."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row.label, []).append(row)
    cells = {
        "PR LABEL": {id(row): row.trigger or "always" for row in rows},
        "RUNNER": {id(row): row.runner for row in rows},
        "IMAGE": {id(row): row.image or "-" for row in rows},
    }
    several = {
        name: {label: list(dict.fromkeys(of_row[id(row)] for row in alike)) for label, alike in by_label.items()}
        for name, of_row in cells.items()
    }
    varying = [name for name, values in several.items() if any(len(each) > 1 for each in values.values())]
    labels = [
        (label, _count(alike), _gpu_counts(alike), *(_one(several[name][label]) for name in ("PR LABEL", "IMAGE")))
        for label, alike in by_label.items()
    ]
    body = [
        (row.row if row.dynamic is None else f"(decided by {row.dynamic})", _gpus(row), row.label)
        + tuple(cells[name][id(row)] for name in varying)
        for row in rows
    ]
    lines = Table(labels, ("LABEL", "ROWS", "GPUS", "PR LABEL", "IMAGE")).text(width)
    lines += ["", *Table(body, ("ROW", "GPUS", "LABEL", *varying)).text(width)]
    refused = dict.fromkeys((row.label, row.refused) for row in rows if row.refused)
    return [*lines, *(["", "Cannot run here:", *Table(list(refused)).text(width)] if refused else [])]


def started(compared: str, labels: Sequence[LabelStart], width: int | None = None) -> list[str]:
    """Which labels a pull request starts, then why it does not start the others."""
    starting = [(each.label, each.workflow, each.why or each.starts) for each in labels if each.starts != "no"]
    others = [(each.label, each.workflow, each.why) for each in labels if each.starts == "no"]
    lines = [compared, *Table(starting, ("LABEL", "WORKFLOW", "STARTS")).text(width)]
    if any(each.starts == "?" for each in labels):
        lines.append("`jobs LABEL` lists a label's rows, and of the label for changed tests those of your change")
    return [*lines, "", *Table(others, ("NOT STARTED", "WORKFLOW", "WHY")).text(width)] if others else lines


def _count(rows: Sequence[Row]) -> str:
    return "?" if any(row.dynamic is not None for row in rows) else str(len(rows))


def _gpu_counts(rows: Sequence[Row]) -> str:
    known = sorted({row.gpus for row in rows if row.gpus is not None})
    counts = [f"{known[0]}-{known[-1]}" if len(known) > 1 else str(known[0])] if known else []
    return ", ".join([*counts, *dict.fromkeys(_gpus(row) for row in rows if row.gpus is None)])


def _gpus(row: Row) -> str:
    return str(row.gpus) if row.gpus is not None else "-" if row.refused else "?"


def _one(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{len(values)} different"
