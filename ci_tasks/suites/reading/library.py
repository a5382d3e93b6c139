"""Functions of Python and of its standard library that a reading can compute: those that look at nothing but their
arguments, with a bound on how much they may make."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.objects import PathText, join, plain
from ci_tasks.suites.reading.texts import TooMuch
from ci_tasks.suites.reading.values import Partly, Text, Unresolved, holes

__all__ = ["CONSTANTS", "FUNCTIONS", "MOST", "TooMuch", "Unknown", "items", "text_of"]

MOST = 10_000  # items of a sequence that is still worth reading


class Unknown(Exception):
    """The result cannot be computed here."""


def text_of(value: Any) -> Text:
    """`str(value)`; a text of one hole for what is not known. Raises Unknown."""
    if isinstance(value, str | Partly):
        return value
    if isinstance(value, Unresolved):
        return Partly((value,))
    if isinstance(value, PathText):
        return value.text
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple | dict) and not any(holes(value)):
        return str(plain(value, 0))
    raise Unknown


def _known(*values: Any) -> None:
    for value in values:
        if any(True for _ in holes(value)):
            raise Unknown


def _on_known(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for arguments that are known through and through."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        _known(*args, *kwargs.values())
        return function(*args, **kwargs)

    return checked


def _items(value: Any) -> list[Any]:
    """What a loop over `value` would see. Raises Unknown."""
    if isinstance(value, str | list | tuple | dict | set | frozenset | range):
        return list(value)
    raise Unknown


items = _items


def _range(*bounds: Any) -> list[int]:
    _known(*bounds)
    found = range(*bounds)
    if len(found) > MOST:
        raise Unknown
    return list(found)


def _length(value: Any) -> int:
    if isinstance(value, list) and any(True for _ in holes(value)):
        raise Unknown  # a hole in a list may stand for several items
    return len(_items(value))


def _path(*parts: Any) -> PathText:
    return PathText(join(*(text_of(part) for part in parts)) or ".")


def _quoted(value: Any) -> Text:
    text = text_of(value)
    return shlex.quote(text) if isinstance(text, str) else text


def _first(*values: Any) -> Any:
    return values[0] if values else ""


def _zip(*sequences: Any, strict: Any = False) -> list[Any]:
    return list(zip(*(_items(sequence) for sequence in sequences), strict=False))


def _enumerate(values: Any, start: Any = 0) -> list[Any]:
    _known(start)
    return list(enumerate(_items(values), start))


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return {**(dict(args[0]) if args else {}), **kwargs}


CONSTANTS: Mapping[str, Any] = {"sys.executable": "python3", "os.sep": "/", "os.pathsep": ":", "os.linesep": "\n"}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "builtins.str": lambda value="": text_of(value),
    "builtins.int": _on_known(int),
    "builtins.float": _on_known(float),
    "builtins.bool": _on_known(bool),
    "builtins.repr": _on_known(repr),
    "builtins.len": _length,
    "builtins.range": _range,
    "builtins.list": lambda value=(): _items(value),
    "builtins.tuple": lambda value=(): tuple(_items(value)),
    "builtins.set": _on_known(lambda value=(): set(_items(value))),
    "builtins.dict": _dict,
    "builtins.zip": _zip,
    "builtins.enumerate": _enumerate,
    "builtins.reversed": lambda value: list(reversed(_items(value))),
    "builtins.sorted": _on_known(lambda value, reverse=False: sorted(_items(value), reverse=reverse)),
    "builtins.sum": _on_known(sum),
    "builtins.min": _on_known(min),
    "builtins.max": _on_known(max),
    "builtins.abs": _on_known(abs),
    "builtins.any": _on_known(any),
    "builtins.all": _on_known(all),
    "os.path.join": lambda *parts: join(*(text_of(part) for part in parts)),
    "os.path.basename": lambda path: texts.split(text_of(path), "/")[-1],
    "os.path.dirname": lambda path: text_of(_path(path).attribute("parent")),
    "os.path.expanduser": _first,
    "os.fspath": text_of,
    "pathlib.Path": _path,
    "pathlib.PurePath": _path,
    "pathlib.PurePosixPath": _path,
    "shlex.quote": _quoted,
    "shlex.join": lambda command: texts.joined(
        piece for at, word in enumerate(_items(command)) for piece in ((" ", _quoted(word)) if at else (_quoted(word),))
    ),
    "shlex.split": lambda text: texts.words(text_of(text)),
    "json.dumps": _on_known(json.dumps),
    "json.loads": _on_known(json.loads),
    "textwrap.dedent": _on_known(textwrap.dedent),
    "copy.copy": _first,
    "copy.deepcopy": _first,
}
