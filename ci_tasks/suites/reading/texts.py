"""Texts with holes: joined, split into words and commands, and compared as far as they are known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from ci_tasks.suites.reading.values import Partly, Text, Unresolved

LONGEST = 50_000  # characters, or items, of a value that is still worth reading
# A hole in a text that a splitter of the standard library is to divide: characters that nobody types.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_OPERATORS = frozenset(";&|\n")


class TooMuch(Exception):
    """The source does more, or makes more, than is worth following."""


def joined(parts: Iterable[Text | Unresolved]) -> Text:
    """One text of several parts. An `Unresolved` among them is a hole. Raises TooMuch."""
    pieces: list[list[str] | Unresolved] = []
    length = 0
    for part in parts:
        for piece in part.parts if isinstance(part, Partly) else (part,):
            length += len(piece) if isinstance(piece, str) else 1
            if length > LONGEST:
                raise TooMuch
            if isinstance(piece, Unresolved):
                pieces.append(piece)
            elif pieces and isinstance(pieces[-1], list):
                pieces[-1].append(piece)
            elif piece:
                pieces.append([piece])
    found = tuple(piece if isinstance(piece, Unresolved) else "".join(piece) for piece in pieces)
    if not found:
        return ""
    return found[0] if len(found) == 1 and isinstance(found[0], str) else Partly(found)


def bounded(value: object) -> None:
    """Raises TooMuch for a value of more than LONGEST characters and items, however they are nested or shared."""
    left, waiting = LONGEST, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str | bytes):
            left -= len(item)
        elif isinstance(item, Partly):
            waiting += item.parts
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += item
        left -= 1
        if left < 0 or len(waiting) > LONGEST:
            raise TooMuch


def beginning(text: Text) -> str:
    """What is known to come first."""
    if isinstance(text, str):
        return text
    return text.parts[0] if isinstance(text.parts[0], str) else ""


def split(text: Text, separator: str | None = None) -> list[Text]:
    """`text.split(separator)`; a hole is taken to hold no separator."""
    marked, holes = _marked(text)
    return [_unmarked(word, holes) for word in marked.split(separator)]


def strip(text: Text, characters: str | None = None, *, left: bool = True, right: bool = True) -> Text:
    marked, holes = _marked(text)
    marked = marked.lstrip(characters) if left else marked
    return _unmarked(marked.rstrip(characters) if right else marked, holes)


def replaced(text: Text, old: str, new: Text) -> Text:
    """`text.replace(old, new)`, where it is known."""
    pieces: list[Text | Unresolved] = []
    for part in text.parts if isinstance(text, Partly) else (text,):
        for number, piece in enumerate(part.split(old) if isinstance(part, str) and old else [part]):
            pieces += [new, piece] if number else [piece]
    return joined(pieces)


def words(text: Text) -> list[Text]:
    """The words that a shell would make of it, as far as quotes go."""
    marked, holes = _marked(text)
    try:
        found = shlex.split(marked)
    except ValueError:  # a quote that is not closed
        found = marked.split()
    return [_unmarked(word, holes) for word in found]


def commands(text: Text) -> list[list[Text]]:
    """The words of each command of a line of shell: `a && b; c` has three."""
    marked, holes = _marked(text)
    lexer = shlex.shlex(marked, posix=True, punctuation_chars="".join(_OPERATORS))
    lexer.whitespace = " \t\r"
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[Text]] = [[]]
    try:
        for token in lexer:
            if set(token) <= _OPERATORS:
                found.append([])
            else:
                found[-1].append(_unmarked(token, holes))
    except ValueError:
        return [words(text)]
    return [command for command in found if command]


def agreed(one: Text, other: Text, hole: Unresolved) -> Text:
    """A text that is either of two: what both begin with, then a hole."""
    if one == other:
        return one
    left, right = _pieces(one), _pieces(other)
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    parts = [*left[:same]]
    if same < min(len(left), len(right)):
        first, second = left[same], right[same]
        if isinstance(first, str) and isinstance(second, str):
            parts.append(_common(first, second))
    elif same < len(left) or same < len(right):
        pass  # one of them goes on where the other ends
    return joined([*parts, hole])


def _pieces(text: Text) -> Sequence[str | Unresolved]:
    return text.parts if isinstance(text, Partly) else (text,)


def _common(one: str, other: str) -> str:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _marked(text: Text) -> tuple[str, list[Unresolved]]:
    if isinstance(text, str):
        return text, []
    holes = list(text.holes)
    numbers = iter(range(len(holes)))
    return "".join(part if isinstance(part, str) else f"{_OPEN}{next(numbers)}{_CLOSE}" for part in text.parts), holes


def _unmarked(text: str, holes: Sequence[Unresolved]) -> Text:
    if not holes or _OPEN not in text:
        return text
    pieces = _MARK.split(text)
    return joined(holes[int(piece)] if at % 2 and int(piece) < len(holes) else piece for at, piece in enumerate(pieces))
