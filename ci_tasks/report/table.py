"""How every report is laid out: tables, paragraphs and lengths of time, as text for a terminal and as markdown.

One rule: a cell is never cut, so that a row's name or a path can be copied. A table that is wider than the terminal
continues below its row, and sentences wrap at the ends of words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import one_line, printable, truncated

GAP = "  "
_INDENT = "    "  # of what continues below its row
_LEAST = 24  # columns that a sentence needs beside other cells
_CELL = 400  # characters of a cell of markdown
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
# What markdown or HTML takes for more than text: an underscore only at a word's edge, a bracket only where a link ends.
_SPECIAL = re.compile(r"[\\`*<>|~&]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|:(?=[\w+-]+:)")
# GitHub makes links of them after it has read entities; a space of no width stops it.
_MENTION = re.compile(r"([@#])(?=\w)")
_NO_WIDTH = "\u200b"


@dataclass(frozen=True)
class Table:
    """Rows of cells, with or without a head; the last column holds sentences. Below a head, an empty column is left
    out."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()

    def text(self, width: int | None = None) -> list[str]:
        """Lines of at most `width` columns, except for longer words; any number without a `width`, as in a file."""
        cells = [[printable(cell) for cell in row] for row in self._lines()]
        most = max(map(len, cells), default=0)
        widths = [max(cell_len(row[at]) for row in cells if at < len(row)) for at in range(most)]
        words = (word for row in cells if len(row) == most for word in " ".join(row[-1:]).split())
        needed = [*widths[:-1], min(widths[-1], max(_LEAST, *map(cell_len, words), 0))] if widths else []
        groups = _fitting(needed, width)
        return [line for row in cells for line in _row(row, widths, groups, width)]

    def markdown(self) -> list[str]:
        lines = self._lines()
        head, *body = [f"| {' | '.join(map(cell, row))} |" for row in lines]
        return [head, "|---" * len(lines[0]) + "|", *body]

    def _lines(self) -> list[Sequence[str]]:
        if not (self.head and self.rows):
            return [*filter(None, [self.head]), *self.rows]
        filled = [at for at in range(len(self.head)) if any(row[at : at + 1] not in ([""], ("",)) for row in self.rows)]
        return [[row[at] for at in filled if at < len(row)] for row in (self.head, *self.rows)]


def _fitting(needed: Sequence[int], width: int | None) -> list[list[int]]:
    """The columns of each line that a row takes."""
    groups: list[list[int]] = [[]]
    used = 0
    for at, size in enumerate(needed):
        if groups[-1] and width is not None and used + size > width:
            groups.append([])
            used = len(_INDENT)
        groups[-1].append(at)
        used += size + len(GAP)
    return groups


def _row(row: Sequence[str], widths: Sequence[int], groups: Sequence[Sequence[int]], width: int | None) -> list[str]:
    lines: list[str] = []
    for number, group in enumerate(groups):
        cells = [padded(row[at], widths[at]) for at in group if at < len(row)]
        left = _INDENT * (number > 0) + GAP.join(cells)
        if width is not None and group[-1:] == [len(row) - 1] == [len(widths) - 1]:
            left = left[: len(left) - len(cells[-1])]
            first, *more = wrapped(row[-1], max(width - cell_len(left), _LEAST))
            block = [left + first, *(" " * cell_len(left) + text for text in more)]
        else:
            block = [left]
        lines += [line.rstrip() for line in block if line.strip() or number == 0]
    return lines


def cell_len(text: str) -> int:
    """The columns of a terminal that `text` takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich import cells  # with tables of all scripts, for names that few have

    return cells.cell_len(text)


def padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns; no word is broken."""
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


def duration(seconds: float) -> str:
    """A length of time as short as its size allows: `4.2 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 99.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest:02d} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def size(count: float) -> str:
    """Bytes as people read them: `1.2 GB`, `34.5 MB`, `0.3 kB`."""
    unit, name = next(((unit, name) for unit, name in _UNITS if count >= 0.99995 * unit), _UNITS[-1])
    return f"{count / unit:.1f} {name}"


def cell(text: str) -> str:
    """Text on one line that markdown leaves as it is."""
    line = truncated(one_line(text), _CELL)
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", _MENTION.sub(rf"\1{_NO_WIDTH}", line))


def code(text: str) -> str:
    """Text on one line as code of markdown, whatever backticks are in it."""
    line = one_line(text)
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"`{line}`"


def fenced(lines: Sequence[str]) -> list[str]:
    """Lines as they are, behind a fence of markdown that none of them can close."""
    longest = max((len(run) for line in lines for run in re.findall(r"`{3,}", line)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}text", *(printable(line) for line in lines), fence]
