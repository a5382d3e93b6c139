"""The one layout rule of all tables.

Where a table is wider than the terminal: what all names of a column begin with stands once, above it; names lose their
middle, as little as keeps them apart; words of the last column wrap, beside the others where there is room, else below
the row; and if that is not enough, a row takes several lines. No word is broken. Nothing is shortened without a
terminal, such as in a file or a pipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ci_tasks.errors import printable

GAP = "  "
_INDENT = "    "  # of what stands below its row
_TEXT = 24  # columns that words need to stand beside the other cells
_SHORTEST_NAME = 16
_SHORTEST_PREFIX = 8
_BOUNDARY = re.compile(r"(?<=[^\w.])(?=\w)|(?<=_)(?=[^_])")  # where a part of a name begins
_MOST_MORE = 200  # columns of a name above its table's share; names that are alike for longer stay whole
_SNAP = 8  # characters of a name that may be left out so that no word of it is broken


def cell_len(text: str) -> int:
    """The columns of a terminal that `text` takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich import cells  # with tables of all scripts, for names that few have

    return cells.cell_len(text)


def columns(
    lines: Sequence[Sequence[str]], width: int | None = None, *, head: Sequence[str] = (), names: Iterable[int] = ()
) -> list[str]:
    """Lines of cells as text with aligned columns, below `head`. `names` are the columns that may be shortened; the
    last one wraps if it is none of them, and is not padded."""
    cells = [[printable(cell) for cell in line] for line in ([head] if head else []) + [*lines]]
    widths = _widths(cells)
    if width is None or not widths or _sum(widths) <= width:
        return _aligned(cells, widths)
    if lines and head and not any(line[len(head) - 1 :] != [""] for line in cells[1:]):  # a heading over nothing
        return columns([line[:-1] for line in cells[1:]], width, head=cells[0][:-1], names=[*names])
    names = [at for at in names if at < len(widths)]
    above = [_factor_out(cells, at, head[at]) for at in names] if head else []
    groups = _shorten_and_group(cells, width, names)
    return [*filter(None, above), *_rows(cells, width, groups)]


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns, except for longer words, which are not broken."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def paragraph(text: str, width: int | None, indent: str = "") -> list[str]:
    """`text` as indented lines; those after the first stand further to the right."""
    if width is None:
        return [indent + text]
    first, *more = wrapped(text, width - len(indent) - len(GAP))
    return [indent + first, *(indent + GAP + line for line in more)]


def without_middle(text: str, width: int) -> str:
    """`text` in at most `width` columns. Names that begin alike differ at their ends, so two thirds are the end."""
    return text if cell_len(text) <= width else _cut(text, width, (width - 1) * 2 // 3, _SNAP)


def shortened(names: Sequence[str], width: int) -> list[str] | None:
    """The names in at most `width` columns each, without their middles, so that different ones stay different; at the
    parts of a name where that is possible. None where there is no such cut."""
    if width < 3:
        return None
    ends = [width * 2 // 3, width // 2, width * 3 // 4, width // 3, *range(width - 2, 0, -1)]
    for snap in (_SNAP, 0):
        for end in ends:
            cut = [name if cell_len(name) <= width else _cut(name, width, min(end, width - 2), snap) for name in names]
            if len(set(cut)) == len(set(names)):
                return cut
    return None


def narrowest(names: Sequence[str], width: int) -> list[str]:
    """The names shortened to `width`, or to the least more that keeps them apart."""
    longest = max(map(cell_len, names), default=0)
    return next(
        (cut for at in range(width, min(longest, width + _MOST_MORE)) if (cut := shortened(names, at))), [*names]
    )


def _cut(text: str, width: int, end: int, snap: int = 0) -> str:
    begin = text[:width]  # a host may send a million characters, of which each takes a look
    while cell_len(begin) > width - 1 - end:
        begin = begin[:-1]
    rest = text[len(begin) :][-width:]
    while cell_len(rest) > end:
        rest = rest[1:]
    if snap:
        at = [match.start() for match in _BOUNDARY.finditer(text)]
        begin = text[: max((i for i in at if len(begin) - snap <= i <= len(begin)), default=len(begin))]
        first = len(text) - len(rest)
        rest = text[min((i for i in at if first <= i <= first + snap), default=first) :]
    return f"{begin}…{rest}".replace("……", "…")


def _factor_out(cells: list[list[str]], at: int, head: str) -> str:
    """The line that says once what all names of a column begin with; "" where that is too little to be worth it."""
    names = [line[at] for line in cells[1:] if at < len(line)]
    common = _common_start(names)
    ends = [match.start() for match in _BOUNDARY.finditer(common + "x") if match.start() <= len(common)]
    common = common[: max(ends, default=0)]
    if len({*names}) < 2 or len(common) < _SHORTEST_PREFIX or common in names:
        return ""
    for line in cells[1:]:
        line[at] = f"…{line[at][len(common) :]}"
    return f"{head}: {common}…"


def _common_start(names: Sequence[str]) -> str:
    first, last = min(names, default=""), max(names, default="")
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _shorten_and_group(cells: list[list[str]], width: int, names: Sequence[int]) -> list[list[int]]:
    """Shorten names where that makes room. Returns the columns of each line of a row; the last one may have to wrap."""
    widths = _widths(cells)
    last = len(widths) - 1
    words = (cell_len(word) for line in cells if last < len(line) for word in line[last].split())
    least = min(widths[last], max(_TEXT, *words, 0))
    together = [*range(last + 1)]
    if _sum([*widths[:last], least]) <= width and last not in names:
        return [together]
    if (widths[last] <= _TEXT or last in names) and _shorten(cells, together, width, names):
        return [together]
    if last not in names and last > 0 and _shorten(cells, together[:last], width, names):
        return [together[:last], [last]]
    groups: list[list[int]] = [[]]
    for at in together:
        indent = len(_INDENT) * (len(groups) > 1)
        if groups[-1] and indent + _sum([widths[i] for i in (*groups[-1], at)]) > width:
            groups.append([])
        groups[-1].append(at)
    for group in groups:
        _shorten(cells, group, width - len(_INDENT), names)
    return groups


def _shorten(cells: list[list[str]], group: Sequence[int], width: int, names: Sequence[int]) -> bool:
    """Shorten the names of these columns until they fit, the longest first. Returns whether they do, else they stay."""
    widths = {at: width for at, width in enumerate(_widths(cells)) if at in group}
    limits = dict(widths)
    while (over := _sum([*limits.values()]) - width) > 0:
        candidates = [at for at in names if at in limits and limits[at] > _SHORTEST_NAME]
        if not candidates:
            return False
        at = max(candidates, key=lambda at: limits[at])
        rival = max((limits[i] for i in candidates if i != at), default=0)
        limits[at] = max(limits[at] - max(1, min(over, limits[at] - rival)), _SHORTEST_NAME)
    cut = {
        at: shortened([line[at] for line in cells if at < len(line)], limits[at])
        for at in names
        if at in limits and limits[at] < widths[at]
    }
    if any(column is None for column in cut.values()):
        return False
    for at, column in cut.items():
        for line, cell in zip([line for line in cells if at < len(line)], column or (), strict=True):
            line[at] = cell
    return True


def _rows(cells: Sequence[Sequence[str]], width: int, groups: Sequence[Sequence[int]]) -> list[str]:
    """Each row as one line a group, with what wraps of the last column below its beginning."""
    widths = _widths(cells)
    last = len(widths) - 1
    lines: list[str] = []
    for row in cells:
        for number, group in enumerate(groups):
            indent = _INDENT * (number > 0)
            shown = [at for at in group if at < len(row)]
            left = indent + "".join(_padded(row[at], widths[at]) + GAP for at in shown if at != last)
            texts = wrapped(row[last], max(width - cell_len(left), _TEXT)) if last in shown else [""]
            block = [left + texts[0], *(" " * cell_len(left) + text for text in texts[1:])]
            lines += [line.rstrip() for line in block if line.strip() or number == 0]
    return lines


def _aligned(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    return [
        GAP.join([*(_padded(cell, width) for cell, width in zip(line[:-1], widths, strict=False)), *line[-1:]]).rstrip()
        for line in cells
    ]


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(cell_len(line[at]) for line in cells if at < len(line)) for at in range(max(map(len, cells), default=0))
    ]


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * max(len(widths) - 1, 0)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - cell_len(cell))
