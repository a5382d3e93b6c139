"""How each row stands while rows run, and the table of it that changes in place on a terminal.

With several hosts each has a lane of its own above the rows. A row is drawn in it by its number, which is that of its
run directory too, so that nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci_tasks.errors import printable
from ci_tasks.report.fleet import FREE, OTHERS, Holder, cells, share

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

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
_ORDER = ("failed", "vacuous", "blocked", "lost", STALLED, RUNNING, "cancelled", WAITING, "passed")
_URGENCY = {state: at for at, state in enumerate(_ORDER)}
_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_yellow")
_STARTED = (RUNNING, STALLED)
_HOSTS_PART = 3  # of a low terminal's lines, hosts take one in so many
_WIDE_COLUMNS = 100  # columns from which on there is room for what the hosts' lanes say too


@dataclass(frozen=True)
class RowProgress:
    """A row as it stands: `seconds` since its start, and its last line or the reason of its end. `host` is empty while
    it waits for one; `gpus` is how many it wants, `gpu_ids` which it has, as soon as that is known. `left` is how many
    seconds it should still take, negative where it runs longer than expected. `log` is the path of this attempt's."""

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
    """A host as it stands: its GPUs, None where they are not known (yet), and how many of them others hold."""

    name: str
    gpus: int | None
    held: int = 0
    up: bool = True
    note: str = ""


def style(state: str) -> str:
    return _STYLES.get(state, "")


def progress_table(
    title: str,
    rows: Sequence[RowProgress],
    height: int,
    hosts: Sequence[HostProgress] = (),
    left: float | None = None,
) -> RenderableType:
    """The table for a terminal of `height` lines: what runs and what went wrong first, what does not fit as a count.
    With more than one host a lane each is above it. `left` is how many seconds all of it should still take."""
    head = title if left is None else f"{title}: {remaining(left)}"
    if len(hosts) < 2:
        return _rows(rows, max(3, height - 6), title=head)
    return _Fleet(head, tuple(rows), tuple(hosts), height)


@dataclass(frozen=True)
class _Fleet:
    """Hosts above rows: how much of a row is said depends on the terminal's width, which is known when it is drawn."""

    head: str
    rows: tuple[RowProgress, ...]
    hosts: tuple[HostProgress, ...]
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        above = _hosts(self.rows, self.hosts, max(2, (self.height - 6) // _HOSTS_PART))
        yield Text(self.head, "italic", no_wrap=True, overflow="ellipsis")
        yield above
        yield _rows(self.rows, max(3, self.height - 7 - above.row_count), width=options.max_width)


def remaining(left: float) -> str:
    """How long something should still take, in words; `left` in seconds, negative where it takes longer already."""
    return f"about {span(left)} left" if left >= 0 else f"{span(-left)} longer than expected"


def span(seconds: float) -> str:
    """A length of time in eight characters or less, since it is read while it changes."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d}"


def _rows(rows: Sequence[RowProgress], max_rows: int, title: str | None = None, width: int = 0) -> Table:
    """`max_rows` rows at most, with expected ends where one is known. `width` is the terminal's where there are several
    hosts; then rows have numbers, long names keep their ends, and a narrow terminal sees only above who is where."""
    from rich.table import Table
    from rich.text import Text

    many, placed, timed = (
        width > 0,
        width >= _WIDE_COLUMNS,
        any(progress.seconds_left is not None for progress in rows),
    )
    names = min(max((len(progress.row) for progress in rows), default=0), width // (3 if placed else 4))
    names = max(names, len("and 999 more"))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=True)
    if many:
        table.add_column("NO", no_wrap=True)
    table.add_column("STATUS", width=9)
    table.add_column("ROW", no_wrap=True, width=names if many else None, ratio=None if many else 2)
    if placed:
        table.add_column("HOST", no_wrap=True, max_width=16)
    table.add_column("TIME", justify="right", no_wrap=many, width=None if many else 8)
    if timed:
        table.add_column("LEFT", justify="right", no_wrap=True)
    table.add_column("LAST", no_wrap=True, ratio=3)
    chosen = sorted(sorted(range(len(rows)), key=lambda at: _urgency(rows[at]))[:max_rows])
    for at in chosen:
        progress = rows[at]
        tried = f"attempt {progress.attempt}: " if many and progress.attempt > 1 else ""
        table.add_row(
            *([Text(_label(at, rows), _colour(at) if progress.state in _STARTED else "dim")] if many else []),
            Text(progress.state, style(progress.state)),
            Text(_cut(progress.row, names) if many else progress.row),
            *([Text(progress.host)] if placed else []),
            _taken(progress, short=many),
            *([_left(progress)] if timed else []),
            Text(
                tried + " ".join(printable(progress.note).split()), "dim"
            ),  # several lines would break the table's height
        )
    hidden = len(rows) - len(chosen)
    if hidden > 0:
        table.add_row(*([""] if many else []), "", Text(f"and {hidden} more", "dim"))
    table.caption = _counts(rows)
    table.caption_justify = "left"
    return table


def _cut(name: str, width: int) -> str:
    """Names of rows that begin alike differ at their ends."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _hosts(rows: Sequence[RowProgress], hosts: Sequence[HostProgress], max_rows: int) -> Table:
    """`max_rows` lines at most, those of hosts that are away and of busy ones first."""
    from rich.table import Table
    from rich.text import Text

    ours: dict[str, list[int]] = {host.name: [] for host in hosts}
    for at, progress in enumerate(rows):
        if progress.state in _STARTED and progress.host in ours:
            ours[progress.host].append(at)
    drawn = {host.name: _cells(host, ours[host.name], rows) for host in hosts}
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("HOST", no_wrap=True, max_width=16)
    table.add_column(f"GPUS ({OTHERS} others', {FREE} free)", no_wrap=True)
    table.add_column("", no_wrap=True, ratio=1)
    shown = len(hosts) if len(hosts) <= max_rows else max_rows - 1
    first = sorted(range(len(hosts)), key=lambda at: (hosts[at].up, -len(ours[hosts[at].name])))
    for at in sorted(first[:shown]):
        host = hosts[at]
        table.add_row(
            Text(host.name, "" if host.up else "bold red"),
            _drawing(drawn[host.name], ours[host.name], rows),
            Text(_standing(host, drawn[host.name], len(ours[host.name])), "dim" if host.up else "bold red"),
        )
    if hidden := [hosts[at] for at in first[shown:]]:
        together = share([cell for host in hidden for cell in drawn[host.name]])
        table.add_row("", Text(f"and {len(hidden)} more hosts", "dim"), Text(together, "dim"))
    return table


def _cells(host: HostProgress, ours: Sequence[int], rows: Sequence[RowProgress]) -> list[str]:
    holders = [Holder(_label(at, rows), rows[at].gpus, rows[at].gpu_ids) for at in ours]
    return cells(host.gpus or 0, holders, host.held)


def _drawing(drawn: Sequence[str], ours: Sequence[int], rows: Sequence[RowProgress]) -> Text:
    from rich.text import Text

    colours: Mapping[str, str] = {_label(at, rows): _colour(at) for at in ours}
    width = _digits(rows)
    text = Text()
    for cell in drawn:
        if text:
            text.append(" ")
        text.append(cell if cell in colours else cell * width, colours.get(cell, "dim"))
    return text


def _standing(host: HostProgress, drawn: Sequence[str], rows: int) -> str:
    """What the cells do not say: that it is away, how many rows it has, what it does."""
    gpus = share(drawn) if host.gpus is not None else "GPUs not known" if host.up else ""
    count = f"{rows} row{'' if rows == 1 else 's'}" if rows else ""
    parts = ("" if host.up else "away", _one_line(host.note), gpus, count)
    return "; ".join(word for word in parts if word)


def _taken(progress: RowProgress, *, short: bool) -> str:
    if progress.seconds is None:
        return ""
    return span(progress.seconds) if short else f"{progress.seconds:.0f} s"


def _left(progress: RowProgress) -> str:
    if progress.seconds_left is None:
        return ""
    return span(progress.seconds_left) if progress.seconds_left >= 0 else f"{span(-progress.seconds_left)} over"


def _label(at: int, rows: Sequence[RowProgress]) -> str:
    return f"{at + 1:0{_digits(rows)}d}"


def _digits(rows: Sequence[RowProgress]) -> int:
    return max(2, len(str(len(rows))))


def _colour(at: int) -> str:
    return _COLOURS[at % len(_COLOURS)]


def _counts(rows: Sequence[RowProgress]) -> str:
    counts = dict.fromkeys(_STYLES, 0)
    for progress in rows:
        if progress.state in counts:
            counts[progress.state] += 1
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _urgency(progress: RowProgress) -> int:
    return _URGENCY.get(progress.state, len(_ORDER))


def _one_line(text: str) -> str:
    """Several lines would break the table's height, and control characters its width."""
    return " ".join(printable(text).split())
