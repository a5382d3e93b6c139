"""Methods of values that are known: of texts, lists, dicts, sets and paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.library import MOST, TooMuch, Unknown, items, text_of
from ci_tasks.suites.reading.objects import PathText
from ci_tasks.suites.reading.values import Partly, Text, Unresolved, holes

# Those that give a text, a number or a list no longer than what they are given.
_OF_TEXT = {
    *("upper", "lower", "title", "capitalize", "casefold", "startswith", "endswith", "removeprefix", "removesuffix"),
    *("partition", "rpartition", "splitlines", "rsplit", "count", "find", "rfind", "index", "isdigit", "isdecimal"),
    *("isalpha", "isalnum", "isnumeric", "strip", "lstrip", "rstrip", "split", "replace", "swapcase", "isspace"),
}
_OF_LIST = {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "index", "count", "copy", "clear"}
_OF_DICT = {"get", "keys", "values", "items", "update", "pop", "setdefault", "copy", "clear"}
_OF_SET = {"add", "discard", "remove", "update", "union", "intersection", "difference", "copy", "issubset"}
_OF_PATH = {"resolve", "absolute", "expanduser", "as_posix", "joinpath", "with_name", "with_suffix"}


def has(owner: Any, name: str) -> bool:
    """Whether it is a method that can be computed here."""
    if isinstance(owner, str):
        return name in _OF_TEXT or name in ("join", "format")
    if isinstance(owner, Partly):
        return name in ("strip", "lstrip", "rstrip", "split", "replace", "startswith", "join", "format")
    kinds: Sequence[tuple[type, set[str]]] = (
        (list, _OF_LIST),
        (dict, _OF_DICT),
        (set, _OF_SET),
        (PathText, _OF_PATH),
    )
    return any(isinstance(owner, kind) and name in names for kind, names in kinds)


def call(owner: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result. Raises Unknown, and whatever Python raises for a call that is wrong."""
    if isinstance(owner, str | Partly):
        return _of_text(owner, name, args, kwargs)
    if isinstance(owner, PathText):
        return _of_path(owner, name, args)
    if isinstance(owner, list) and len(owner) > MOST:
        raise TooMuch
    if isinstance(owner, list) and name == "extend":
        owner.extend(items(args[0]) if not isinstance(args[0], Unresolved) else [args[0]])
        return None
    if isinstance(owner, dict):
        return _of_dict(owner, name, args, kwargs)
    if isinstance(owner, list) and name in ("append", "insert", "copy", "clear", "reverse"):
        return getattr(owner, name)(*args)
    if any(True for _ in holes([owner, *args, *kwargs.values()])):
        raise Unknown
    return getattr(owner, name)(*args, **kwargs)


def _of_dict(owner: dict[Any, Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if any(True for _ in holes(args[:1])) and name != "update":
        raise Unknown
    if name == "update":
        for given in (*args, kwargs):
            if not isinstance(given, dict):
                raise Unknown
            owner.update(given)
        return None
    found = getattr(owner, name)(*args, **kwargs)
    return list(found) if name in ("keys", "values", "items") else found


def _of_text(owner: Text, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if name == "join":
        pieces = [piece if isinstance(piece, Unresolved) else text_of(piece) for piece in items(args[0])]
        return texts.joined(part for at, piece in enumerate(pieces) for part in ((owner, piece) if at else (piece,)))
    if name == "format":
        return _formatted(owner, args, kwargs)
    if name == "replace" and isinstance(args[0], str):
        return texts.replaced(owner, args[0], text_of(args[1]))
    if isinstance(owner, Partly):
        return _of_partly(owner, name, args)
    if any(True for _ in holes([*args, *kwargs.values()])):
        raise Unknown
    return getattr(owner, name)(*args, **kwargs)


def _of_partly(owner: Partly, name: str, args: Sequence[Any]) -> Any:
    given = args[0] if args else None
    if not (given is None or isinstance(given, str)):
        raise Unknown
    if name == "split" and len(args) < 2:
        return texts.split(owner, given)
    if name == "startswith" and given is not None and len(texts.beginning(owner)) >= len(given):
        return texts.beginning(owner).startswith(given)
    if name in ("strip", "lstrip", "rstrip"):
        return texts.strip(owner, given, left=name != "rstrip", right=name != "lstrip")
    raise Unknown


def _formatted(owner: Text, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Text:
    """`"{} {name}".format(…)` with plain fields; a field with a format of its own has to be known."""
    import string

    if not isinstance(owner, str):
        raise Unknown
    pieces: list[Text | Unresolved] = []
    count = 0
    for literal, field, spec, conversion in string.Formatter().parse(owner):
        pieces.append(literal)
        if field is None:
            continue
        value = args[int(field or count)] if not field or field.isdecimal() else kwargs[field]
        count += 1
        pieces.append(formatted(value, spec or "", conversion))
    return texts.joined(pieces)


def formatted(value: Any, spec: str, conversion: str | None) -> Text | Unresolved:
    """A value in an f-string. Raises Unknown."""
    if isinstance(value, Unresolved):
        return value
    if any(len(digits) > 4 for digits in spec.replace(".", " ").split() if digits.isdecimal()) or len(spec) > 12:
        raise Unknown
    if not spec and conversion != "r":
        return text_of(value)
    if any(True for _ in holes(value)) or not (value is None or isinstance(value, bool | int | float | str)):
        raise Unknown
    return format(repr(value) if conversion == "r" else value, spec)


def _of_path(owner: PathText, name: str, args: Sequence[Any]) -> Any:
    if name == "joinpath":
        for part in args:
            owner = owner / text_of(part)
        return owner
    if name == "as_posix":
        return owner.text
    if name in ("resolve", "absolute", "expanduser") and texts.beginning(owner.text)[:1] in ("/", ""):
        return owner
    raise Unknown
