"""How each row stands while rows run, and the table of it that changes in place on a terminal.

With several hosts each has a line above the rows: how many of its GPUs are whose. Nothing is said by colour alone. A
row's name is not cut: if it does not fit beside the other cells, it is below them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, one_line, printable
from ci_tasks.report.table import GAP, cell_len, padded

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# How a row stands that has no status yet. A stalled one runs, and has written nothing for its stall_minutes.
RUNNING, STALLED, WAITING = "running", "stalled", "waiting"
# Colours of the 256 that terminals do not redefine, all of middle lightness: they can be read on black and on white.
_QUIET, _OURS, _BAD = "color(244)", "color(31)", "bold color(160)"
_STYLES = {
    "passed": "color(28)", "failed": _BAD, "vacuous": "bold color(136)", "blocked": "color(163)", "cancelled": _QUIET,
    "lost": "bold color(163)", RUNNING: _OURS, STALLED: "bold color(136)", WAITING: _QUIET,
}  # fmt: skip
_ORDER = ("failed", "vacuous", "blocked", "lost", STALLED, RUNNING, "cancelled", WAITING, "passed")
_INDENT = "    "
_FRAME = 6  # lines of a terminal that are not rows
_HOSTS_PART = 3  # of a low terminal's lines, hosts take one in so many
_HOST_WIDTH = 16
_LEAST_NOTE = 12  # columns, with less the last line of a row is left out
_ECHO = "^C^C"
_Line = list[tuple[str, str]]  # texts with their styles


@dataclass(frozen=True)
class RowProgress:
    """A row now: `seconds` since its start, and its last line or the reason of its end. `host` is empty while it waits
    for one; `gpus` is how many it wants, `gpu_ids` which it has, as soon as that is known. `seconds_left` is how many
    it should still take, negative if it runs longer than expected. `log` is the path of this attempt's.
    """

    row: str
    state: str
    seconds: float | None = None
    note: str = ""
    host: str = ""
    gpus: int = 0
    gpu_ids: tuple[int, ...] = ()
    seconds_left: float | None = None
    attempt: int = 1
    log: str = ""


@dataclass(frozen=True)
class HostProgress:
    """A host now: its GPUs, None if they are not known (yet), and how many of them others hold."""

    name: str
    gpus: int | None
    held: int = 0
    up: bool = True
    note: str = ""


def style(state: str) -> str:
    return _STYLES.get(state, "")


@dataclass(frozen=True)
class ProgressTable:
    """The table for a terminal of `height` lines: what runs and what went wrong first, what does not fit as a count.
    With more than one host a line for each is above it. How much of a row is said depends on the terminal's width,
    which is known when it is drawn."""

    head: str
    rows: Sequence[RowProgress]
    height: int
    hosts: Sequence[HostProgress] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width, several = options.max_width, len(self.hosts) > 1
        hosts = _hosts(self.rows, self.hosts, max(2, (self.height - _FRAME) // _HOSTS_PART)) if several else []
        rows = _rows(self.rows, self.height - _FRAME - len(hosts), width, several_hosts=several)
        # A terminal echoes ^C at the end of the last line. It must not wrap: one line of the table would be left.
        counts = (max(width - len(_ECHO), 1), [(_counts(self.rows), "italic")])
        for most, line in [*((width, line) for line in ([(self.head, "italic")], *hosts, *rows)), counts]:
            text = Text.assemble(*line, no_wrap=True)
            text.truncate(most, overflow="ellipsis")
            text.rstrip()
            yield text


def span(seconds: float) -> str:
    """A length of time in eight characters or less, since it is read while it changes."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d}"


def _rows(rows: Sequence[RowProgress], height: int, width: int, *, several_hosts: bool) -> Iterator[_Line]:
    columns = {
        "STATUS": [f"{row.state:<{max(map(len, _STYLES))}}" for row in rows],  # it stays as wide when states change
        "ROW": [printable(row.row) for row in rows],
        **({"HOST": [printable(row.host)[:_HOST_WIDTH] for row in rows]} if several_hosts else {}),
        "TIME": ["" if row.seconds is None else span(row.seconds) for row in rows],
        **({"LEFT": [*map(_left, rows)]} if any(row.seconds_left is not None for row in rows) else {}),
    }
    widths = {head: max(map(cell_len, (head, *column))) for head, column in columns.items()}
    names: list[str] = []
    if sum(widths.values()) + len(GAP) * (len(widths) - 1) > width:
        names = columns.pop("ROW")
        del widths["ROW"]
    is_noted = width - sum(widths.values()) - len(GAP) * len(widths) >= _LEAST_NOTE
    yield [(_joined({head: head for head in columns}, widths) + (f"{GAP}LAST" if is_noted else ""), "bold")]
    if names:
        yield [(f"{_INDENT}ROW", "bold")]
    most = max(3, height) // 2 if names else max(3, height)
    urgent = sorted(range(len(rows)), key=lambda at: _ORDER.index(rows[at].state) if rows[at].state in _ORDER else 99)
    for at in sorted(urgent[:most]):
        row = rows[at]
        before, after = _joined({head: column[at] for head, column in columns.items()}, widths).split(row.state, 1)
        tried = f"attempt {row.attempt}: " if several_hosts and row.attempt > 1 else ""
        note = GAP + one_line(tried + row.note) if is_noted else ""
        yield [(before, _QUIET), (row.state, style(row.state)), (after, ""), (note, _QUIET)]
        if names:
            yield [(_INDENT + names[at], "")]
    if len(rows) > most:
        yield [(f"{_INDENT}and {len(rows) - most} more", _QUIET)]


def _joined(cells: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """The cells of one line; times are aligned at their ends."""
    return GAP.join(
        " " * (widths[head] - len(cell)) + cell if head in ("TIME", "LEFT") else padded(cell, widths[head])
        for head, cell in cells.items()
    )


def _hosts(rows: Sequence[RowProgress], hosts: Sequence[HostProgress], most: int) -> list[_Line]:
    """The hosts in at most `most` lines, unreachable and busy hosts first."""
    running = [row for row in rows if row.state in (RUNNING, STALLED)]
    ours = {host.name: [row for row in running if row.host == host.name] for host in hosts}
    shown = len(hosts) if len(hosts) <= most else most - 1
    first = sorted(hosts, key=lambda host: (host.up, -len(ours[host.name])))[:shown]
    names = {host.name: printable(host.name)[:_HOST_WIDTH] for host in hosts}
    width = max(map(cell_len, ("HOST", *names.values())))
    lines: list[_Line] = [[(padded("HOST", width) + GAP + "GPUS", "bold")]]
    for host in [host for host in hosts if host in first]:
        colour = "" if host.up else _BAD
        said = _standing(host, ours[host.name])
        lines.append([(padded(names[host.name], width) + GAP, colour), (said, colour or _QUIET)])
    if shown < len(hosts):
        lines.append([(f"{' ' * width}{GAP}and {len(hosts) - shown} more hosts", _QUIET)])
    return lines


def _standing(host: HostProgress, rows: Sequence[RowProgress]) -> str:
    """`4 ours, 2 others', 2 free; 1 row`; before that whether it is away, and what it does."""
    gpus = max(host.gpus or 0, 0)
    ours = min(sum(max(row.gpus, len(row.gpu_ids)) for row in rows), gpus)
    others = min(max(host.held, 0), gpus - ours)
    counts = ((ours, "ours"), (others, "others'"), (gpus - ours - others, "free"))
    shares = ", ".join(f"{count} {whose}" for count, whose in counts if count) or "no GPU"
    said = shares if host.gpus is not None else "GPUs not known" if host.up else ""
    parts = ("" if host.up else "away", one_line(host.note), said, counted(len(rows), "row") if rows else "")
    return "; ".join(filter(None, parts))


def _left(row: RowProgress) -> str:
    if row.seconds_left is None:
        return ""
    return span(row.seconds_left) if row.seconds_left >= 0 else f"{span(-row.seconds_left)} over"


def _counts(rows: Sequence[RowProgress]) -> str:
    counts = {state: sum(row.state == state for row in rows) for state in _STYLES}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)
