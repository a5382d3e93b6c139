"""The tables of `ci-tasks jobs`: the labels, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ci_tasks.report.layout import columns

if TYPE_CHECKING:
    from ci_tasks.workflow.model import Row


def jobs(rows: Sequence[Row], width: int | None = None) -> list[str]:
    """A summary line for each label, then each row; what is equal in all rows of a label is in its summary."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row.label, []).append(row)
    summary_head = ("LABEL", "ROWS", "GPUS", "PR LABEL", "IMAGE")
    summaries = [_label_summary(label, of_label) for label, of_label in by_label.items()]
    lines = columns(summaries, width, head=summary_head, names=[3, 4])
    varying = [
        (name, cell)
        for name, cell in _JOB_CELLS.items()
        if any(len({cell(row) for row in of_label}) > 1 for of_label in by_label.values())
    ]
    body = [(row.label, _row_name(row), _gpus(row), *(cell(row) for _, cell in varying)) for row in rows]
    head = ("LABEL", "ROW", "GPUS", *(name for name, _ in varying))
    lines += ["", *columns(body, width, head=head, names=[1, *range(3, len(head))])]
    refused = dict.fromkeys((row.label, row.refused) for row in rows if row.refused)
    return [*lines, *(["", "Cannot run here:", *columns(list(refused), width)] if refused else [])]


def _label_summary(label: str, rows: Sequence[Row]) -> tuple[str, ...]:
    count = "?" if any(row.dynamic is not None for row in rows) else str(len(rows))
    known = sorted({row.gpus for row in rows if row.gpus is not None})
    counts = [f"{known[0]}-{known[-1]}" if len(known) > 1 else str(known[0])] if known else []
    gpus = ", ".join([*counts, *dict.fromkeys(_gpus(row) for row in rows if row.gpus is None)])
    each = (_several([cell(row) for row in rows]) for cell in (_JOB_CELLS[name] for name in ("PR LABEL", "IMAGE")))
    return (label, count, gpus, *each)


def _several(values: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else f"{len(distinct)} different"


_JOB_CELLS: dict[str, Callable[[Row], str]] = {
    "PR LABEL": lambda row: row.trigger or "always",
    "RUNNER": lambda row: row.runner,
    "IMAGE": lambda row: row.image or "-",
}


def _row_name(row: Row) -> str:
    return row.row if row.dynamic is None else f"(decided by {row.dynamic})"


def _gpus(row: Row) -> str:
    return str(row.gpus) if row.gpus is not None else "-" if row.refused else "?"
