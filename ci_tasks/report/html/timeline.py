"""Rows over the GPUs that they held, in time: a drawing for each batch and host, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ci_tasks.report.html.words import details, esc, status, table

_WIDTH, _GUTTER, _LANE, _TOP = 1000, 90, 28, 8
_LETTER = 6.7  # average width of one at the drawing's font size
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_MOST_TICKS = 9


@dataclass(frozen=True)
class Bar:
    """A row's time. `began`, `held` and `ended` are in seconds since the epoch: when it started, when it had its GPUs
    (None where it never had or needed any), and its end, or when it was last heard of. `phases` are (seconds, what
    began then); `batch` is what was drawn together."""

    row: str
    status: str
    batch: str
    host: str
    began: float
    ended: float
    held: float | None = None
    gpus: tuple[int, ...] = ()
    phases: Sequence[tuple[float, str]] = field(default_factory=tuple)


def timeline(bars: Sequence[Bar]) -> str:
    """The section's content; says so where no row ran."""
    groups: dict[tuple[str, str], list[Bar]] = {}
    for bar in bars:
        groups.setdefault((bar.batch, bar.host), []).append(bar)
    if not groups:
        return "<p>No row ran.</p>\n"
    return "".join(_figure(number, *name, group) for number, (name, group) in enumerate(groups.items()))


def lanes(bars: Sequence[Bar]) -> dict[str, list[Bar]]:
    """Lane → its bars: one lane for each GPU, then as many as needed for rows without one that ran side by side."""
    found: dict[str, list[Bar]] = {
        f"GPU {gpu}": [bar for bar in bars if gpu in bar.gpus]
        for gpu in sorted({gpu for bar in bars for gpu in bar.gpus})
    }
    free: list[list[Bar]] = []
    for bar in sorted((bar for bar in bars if not bar.gpus), key=lambda bar: bar.began):
        lane = next((lane for lane in free if lane[-1].ended <= bar.began), None)
        if lane is None:
            lane = []
            free.append(lane)
        lane.append(bar)
    named = {f"no GPU {number}" if len(free) > 1 else "no GPU": lane for number, lane in enumerate(free, 1)}
    return {**found, **named}


def clock(seconds: float) -> str:
    """A length of time as short as its size allows: `4.2 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 99.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest:02d} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def _figure(number: int, batch: str, host: str, bars: Sequence[Bar]) -> str:
    start = min(bar.began for bar in bars)
    end = max(max(bar.ended for bar in bars), start + 0.1)
    found = lanes(bars)
    height = _TOP + _LANE * len(found) + 26
    scale = (_WIDTH - _GUTTER - 10) / (end - start)
    gpus = sum(name.startswith("GPU") for name in found)
    many = f"{len(bars)} row{'' if len(bars) == 1 else 's'}"
    title = f"{many} of {batch} on {host}, over {f'{gpus} GPUs' if gpus else 'time'}"
    drawn = [_axis(end - start, scale, height)]
    for at, (name, lane) in enumerate(found.items()):
        y = _TOP + at * _LANE
        drawn.append(f'<text class="lane" x="{_GUTTER - 8}" y="{y + 18}" text-anchor="end">{esc(name)}</text>')
        drawn += [_bar(bar, y, start, scale) for bar in lane]
    return (
        f'<figure class="timeline"><figcaption>{esc(title)}. A bar is the time in which a row held the GPU; the '
        f"thin line before it, its start: install steps, and waiting for others.</figcaption>\n"
        f'<div class="wide" tabindex="0" role="region" aria-label="{esc(title)}">'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="time{number}-t time{number}-d">'
        f'<title id="time{number}-t">{esc(title)}</title>'
        f'<desc id="time{number}-d">{esc(_described(bars, start))}</desc>\n{"".join(drawn)}</svg></div>\n'
        f"{details('The same as a table', _table(bars, start))}</figure>\n"
    )


def _axis(seconds: float, scale: float, height: int) -> str:
    step = next((step for step in _STEPS if seconds / step <= _MOST_TICKS), None) or seconds / _MOST_TICKS
    drawn = []
    for at in range(int(seconds / step) + 1):
        x = _GUTTER + at * step * scale
        drawn.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - 20}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{clock(at * step)}</text>'
        )
    return "".join(drawn)


def _bar(bar: Bar, y: int, start: float, scale: float) -> str:
    held = bar.began if bar.held is None else bar.held
    x, width = _GUTTER + (held - start) * scale, max(2.0, (bar.ended - held) * scale)
    before = _GUTTER + (bar.began - start) * scale
    kind = bar.status if bar.status in ("passed", "failed", "blocked", "vacuous") else "other"
    said = f"{bar.row}: {bar.status}, {clock(bar.ended - held)}"
    label = _label(bar.row, int((width - 10) / _LETTER))
    line = f'<line class="before {kind}" x1="{before:.1f}" x2="{x:.1f}" y1="{y + 22}" y2="{y + 22}"/>'
    return (
        f"<g><title>{esc(said)}</title>{line if x - before > 1 else ''}"
        f'<rect class="bar {kind}" x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_LANE - 8}" rx="3"/>'
        f'<text class="label" x="{x + 5:.1f}" y="{y + 18}">{esc(label)}</text></g>\n'
    )


def _label(row: str, room: int) -> str:
    """What of a row's name stands in `room` letters: rows of one label differ in what their brackets say."""
    name = row if len(row) <= room or not row.endswith("]") else row.rpartition("[")[2][:-1]
    if len(name) <= room:
        return name
    return name[: room - 1] + "…" if room > 3 else ""


def _described(bars: Sequence[Bar], start: float) -> str:
    return "; ".join(
        f"{bar.row}: {bar.status}, from {clock(bar.began - start)} to {clock(bar.ended - start)}"
        + (f" on GPU {_list(bar.gpus)}" if bar.gpus else "")
        for bar in bars[:50]
    )


def _table(bars: Sequence[Bar], start: float) -> str:
    head = ("Row", "Status", "GPUs", "Started", "Had its GPUs", "Ended", "Phases")
    body = [
        (
            esc(bar.row),
            status(bar.status),
            esc(_list(bar.gpus)) or "–",
            clock(bar.began - start),
            "–" if bar.held is None else clock(bar.held - start),
            clock(bar.ended - start),
            esc("; ".join(f"{what} at {clock(max(0.0, at - start))}" for at, what in bar.phases)) or "–",
        )
        for bar in bars
    ]
    return table("When each row ran, counted from the start of the first", head, body)


def _list(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus))


def phases(events: Sequence[Mapping[str, object]]) -> list[tuple[float, str]]:
    """What the lines of events.jsonl say a person wants to know of: (seconds since the epoch, what began)."""
    found: list[tuple[float, str]] = []
    for event in events:
        at, what = event.get("t"), str(event.get("event") or "")
        if not isinstance(at, (int, float)) or not what:
            continue
        detail = event.get("name") or event.get("image") or ""
        if what == "waiting":
            said = "waits for GPUs"
        elif what == "gpus":
            said = "has its GPUs"
        else:
            said = f"{what} {detail}".strip()
        if not found or found[-1][1] != said:
            found.append((float(at), said))
    return found
