"""Who stood where when a run hung: in a terminal, in markdown and in the page."""

from __future__ import annotations

from ci_tasks.records import Hang
from ci_tasks.report.layout import columns

MOST_GROUPS = 20


def hang_groups(hang: Hang, width: int | None = None) -> list[str]:
    rows = [(group.who, group.where) for group in hang.groups[:MOST_GROUPS]]
    return columns(rows, width, head=("PROCESSES", "WHERE"), names=[1]) if rows else []
