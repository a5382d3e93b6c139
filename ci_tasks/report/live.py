"""How each row stands while rows run, and the table of it that changes in place on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

# How a row stands that has no status yet. A stalled one runs, and has written nothing for its stall_minutes.
RUNNING, STALLED, WAITING = "running", "stalled", "waiting"
_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "vacuous": "bold yellow",
    "blocked": "magenta",
    "cancelled": "dim",
    "lost": "bold magenta",
    RUNNING: "cyan",
    STALLED: "bold yellow",
    WAITING: "dim",
}


@dataclass(frozen=True)
class Lane:
    """A row as it stands: `seconds` since its start, and its last line or the reason of its end."""

    row: str
    state: str
    seconds: float | None = None
    note: str = ""


def style(state: str) -> str:
    return _STYLES.get(state, "")


def live(title: str, lanes: Sequence[Lane], height: int) -> RenderableType:
    """The table for a terminal of `height` lines: what runs and what went wrong first, what does not fit as a count."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column("STATUS", width=9)
    table.add_column("ROW", no_wrap=True, ratio=2)
    table.add_column("TIME", justify="right", width=8)
    table.add_column("LAST", no_wrap=True, ratio=3)
    room = max(3, height - 6)
    chosen = sorted(sorted(range(len(lanes)), key=lambda at: _urgency(lanes[at]))[:room])
    for lane in (lanes[at] for at in chosen):
        seconds = "" if lane.seconds is None else f"{lane.seconds:.0f} s"
        note = " ".join(lane.note.split())  # a reason of several lines would break the table's height
        table.add_row(Text(lane.state, style(lane.state)), Text(lane.row), seconds, Text(note, "dim"))
    hidden = len(lanes) - len(chosen)
    if hidden > 0:
        table.add_row("", Text(f"and {hidden} more", "dim"))
    counts = ", ".join(
        f"{sum(lane.state == state for lane in lanes)} {state}" for state in _STYLES if _any(lanes, state)
    )
    table.caption = counts
    table.caption_justify = "left"
    return table


def _any(lanes: Sequence[Lane], state: str) -> bool:
    return any(lane.state == state for lane in lanes)


def _urgency(lane: Lane) -> int:
    order = ("failed", "vacuous", "blocked", "lost", STALLED, RUNNING, "cancelled", WAITING, "passed")
    return order.index(lane.state) if lane.state in order else len(order)
