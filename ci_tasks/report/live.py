"""How each row stands while rows run, and the table of it that changes in place on a terminal.

With several hosts each has a lane of its own above the rows. A row is drawn in it by its number, which is that of its
run directory too, so that nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, one_line, printable
from ci_tasks.report.fleet import FREE, OTHERS, Holder, cells, share
from ci_tasks.report.layout import GAP, cell_len, narrowest, without_middle

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

# How a row stands that has no status yet. A stalled one runs, and has written nothing for its stall_minutes.
RUNNING, STALLED, WAITING = "running", "stalled", "waiting"
# Colours of the 256 that terminals do not redefine, all of middle lightness: they can be read on black and on white.
_QUIET = "color(244)"
_STYLES = {
    "passed": "color(28)",
    "failed": "bold color(160)",
    "vacuous": "bold color(136)",
    "blocked": "color(163)",
    "cancelled": _QUIET,
    "lost": "bold color(163)",
    RUNNING: "color(31)",
    STALLED: "bold color(136)",
    WAITING: _QUIET,
}
_ORDER = ("failed", "vacuous", "blocked", "lost", STALLED, RUNNING, "cancelled", WAITING, "passed")
_URGENCY = {state: at for at, state in enumerate(_ORDER)}
_COLOURS = tuple(f"color({number})" for number in (31, 28, 136, 33, 163, 166, 99, 65))
_STARTED = (RUNNING, STALLED)
_HOSTS_PART = 3  # of a low terminal's lines, hosts take one in so many
_HOST_WIDTH = 16
_NOTE_WIDTH = 32  # columns for the last line of a row, where names are so long that they lose their middles
_LEAST_NOTE = 12  # columns, with less it is left out
_ECHO = "^C^C"
_WIDE_COLUMNS = 100  # columns from which on there is room for what the hosts' lanes say too


@dataclass(frozen=True)
class RowProgress:
    """A row as it stands: `seconds` since its start, and its last line or the reason of its end. `host` is empty while
    it waits for one; `gpus` is how many it wants, `gpu_ids` which it has, as soon as that is known. `seconds_left`
    is how many it should still take, negative where it runs longer than expected; `first_run`: no earlier run says how
    long it takes. `log` is the path of this attempt's."""

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
    first_run: bool = False


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
    until = expected_end(rows, left)
    return _Screen(f"{title}: {until}" if until else title, tuple(rows), tuple(hosts) if len(hosts) > 1 else (), height)


@dataclass(frozen=True)
class _Screen:
    """Hosts above rows: how much of a row is said depends on the terminal's width, which is known when it is drawn."""

    head: str
    rows: tuple[RowProgress, ...]
    hosts: tuple[HostProgress, ...]
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width, above = options.max_width, 0
        yield Text(without_middle(self.head, width), "italic")
        if self.hosts:
            lanes = _hosts(self.rows, self.hosts, max(2, (self.height - 6) // _HOSTS_PART))
            yield lanes
            above = 1 + lanes.row_count
        yield _rows(self.rows, max(3, self.height - 6 - above), width, several_hosts=bool(self.hosts))
        # A terminal echoes ^C at the end of the last line. It must not wrap: one line of the table would be left.
        yield Text(without_middle(_counts(self.rows), max(width - len(_ECHO), 1)), "italic")


def expected_end(rows: Sequence[RowProgress], left: float | None) -> str:
    """How long all of it should still take, by earlier runs of all rows that have not ended; "" where that is not
    known yet."""
    unfinished = [progress for progress in rows if progress.state in (RUNNING, STALLED, WAITING)]
    first = sum(progress.first_run for progress in unfinished)
    if first:
        return "no earlier run" if first == len(unfinished) else f"no earlier run of {first} of {len(rows)} rows"
    return "" if left is None else remaining(left)


def remaining(left: float) -> str:
    """How long something should still take, in words; `left` in seconds, negative where it takes longer already."""
    return f"about {span(left)} left" if left >= 0 else f"{span(-left)} longer than expected"


def span(seconds: float) -> str:
    """A length of time in eight characters or less, since it is read while it changes."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d}"


def _rows(rows: Sequence[RowProgress], max_rows: int, width: int, *, several_hosts: bool) -> Table:
    """`max_rows` rows at most, with expected ends where one is known. Where there are several hosts, rows have numbers,
    and a narrow terminal sees only above who is where."""
    from rich.table import Table
    from rich.text import Text

    placed, timed = several_hosts and width >= _WIDE_COLUMNS, any(row.seconds_left is not None for row in rows)
    chosen = sorted(sorted(range(len(rows)), key=lambda at: _urgency(rows[at]))[:max_rows])
    hidden = f"and {len(rows) - len(chosen)} more" if len(chosen) < len(rows) else ""
    cells: dict[str, list[str]] = {
        **({"NO": [_label(at, rows) for at in chosen]} if several_hosts else {}),
        "STATUS": [rows[at].state for at in chosen],
        "ROW": [printable(rows[at].row) for at in chosen],
        **({"HOST": [without_middle(rows[at].host, _HOST_WIDTH) for at in chosen]} if placed else {}),
        "TIME": [_taken(rows[at]) for at in chosen],
        **({"LEFT": [_left(rows[at]) for at in chosen]} if timed else {}),
    }
    widths = {head: max(map(cell_len, [head, *column])) for head, column in cells.items()}
    widths["STATUS"] = max(map(len, _STYLES))  # so that the table stays as it is when states change
    room = width - sum(widths.values()) + widths["ROW"] - len(GAP) * len(cells)
    limit = max(room - min(_NOTE_WIDTH, room // 2), len(hidden), 1)
    if widths["ROW"] > limit:
        cells["ROW"] = narrowest(cells["ROW"], limit)
    widths["ROW"] = max(map(cell_len, ["ROW", hidden, *cells["ROW"]]))
    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0))
    for head, column_width in widths.items():
        justify: Literal["left", "right"] = "right" if head in ("TIME", "LEFT") else "left"
        table.add_column(head, no_wrap=True, width=column_width, justify=justify)
    noted = room - widths["ROW"] >= _LEAST_NOTE
    if noted:
        table.add_column("LAST", no_wrap=True)
    for number, at in enumerate(chosen):
        progress = rows[at]
        tried = f"attempt {progress.attempt}: " if several_hosts and progress.attempt > 1 else ""
        styles = {
            "NO": _colour(at) if progress.state in _STARTED else _QUIET,
            "STATUS": style(progress.state),
        }
        table.add_row(
            *(Text(column[number], styles.get(head, "")) for head, column in cells.items()),
            *([Text(without_middle(one_line(tried + progress.note), room - widths["ROW"]), _QUIET)] if noted else []),
        )
    if hidden:
        table.add_row(*(Text(hidden if head == "ROW" else "", _QUIET) for head in cells))
    return table


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
    table.add_column("HOST", no_wrap=True)
    table.add_column(f"GPUS ({OTHERS} others', {FREE} free)", no_wrap=True)
    table.add_column("", no_wrap=True, ratio=1)
    shown = len(hosts) if len(hosts) <= max_rows else max_rows - 1
    first = sorted(range(len(hosts)), key=lambda at: (hosts[at].up, -len(ours[hosts[at].name])))
    for at in sorted(first[:shown]):
        host = hosts[at]
        table.add_row(
            Text(without_middle(printable(host.name), _HOST_WIDTH), "" if host.up else _STYLES["failed"]),
            _drawing(drawn[host.name], ours[host.name], rows),
            Text(_standing(host, drawn[host.name], len(ours[host.name])), _QUIET if host.up else _STYLES["failed"]),
        )
    if hidden := [hosts[at] for at in first[shown:]]:
        together = share([cell for host in hidden for cell in drawn[host.name]])
        table.add_row("", Text(f"and {len(hidden)} more hosts", _QUIET), Text(together, _QUIET))
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
        text.append(cell if cell in colours else cell * width, colours.get(cell, _QUIET))
    return text


def _standing(host: HostProgress, drawn: Sequence[str], rows: int) -> str:
    """What the cells do not say: that it is away, how many rows it has, what it does."""
    gpus = share(drawn) if host.gpus is not None else "GPUs not known" if host.up else ""
    count = counted(rows, "row") if rows else ""
    parts = ("" if host.up else "away", one_line(host.note), gpus, count)
    return "; ".join(word for word in parts if word)


def _taken(progress: RowProgress) -> str:
    return "" if progress.seconds is None else span(progress.seconds)


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
