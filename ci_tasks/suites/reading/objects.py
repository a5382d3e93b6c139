"""What stands for things of a run while a source is read: modules, functions, paths, the environment, parsers."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.values import Partly, Text, Unresolved


@dataclass
class Scope:
    """The names of a module or of a function's call; `parent` is where else they are looked for."""

    names: dict[str, Any] = field(default_factory=dict)
    parent: Scope | None = None
    foreign: dict[str, Scope] = field(default_factory=dict)  # names declared `global` or `nonlocal`

    def find(self, name: str) -> Any:
        """The value, or KeyError."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        raise KeyError(name)

    def bind(self, name: str, value: Any) -> None:
        self.foreign.get(name, self).names[name] = value

    def chain(self) -> list[Scope]:
        return [self, *(self.parent.chain() if self.parent else [])]


@dataclass(frozen=True, eq=False)
class Imported:
    """A module, or something of one, by its dotted name."""

    target: str


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the test, or of a helper module beside it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    name: str
    file: str
    defaults: tuple[Any, ...] = ()
    keyword_defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Method:
    """A method of a value that is known: `"…".format`, `words.append`."""

    owner: Any
    name: str


@dataclass(frozen=True)
class PathText:
    """A pathlib path, as its text."""

    text: Text

    def __truediv__(self, other: Text | PathText) -> PathText:
        return PathText(join(self.text, other.text if isinstance(other, PathText) else other))

    def attribute(self, name: str) -> Any:
        """`.name`, `.stem`, `.suffix`, `.parent`; None where it is not one of them, or is not known."""
        last = texts.split(self.text, "/")[-1]
        if name == "parent":
            return PathText(texts.joined(_with(texts.split(self.text, "/")[:-1], "/")) or ".")
        if isinstance(last, Partly):
            return None
        stem, suffix = posixpath.splitext(last)
        return {"name": last, "stem": stem, "suffix": suffix}.get(name)


class Environ(dict[str, Any]):
    """os.environ, as far as the row says it. What it does not name is taken to be unset."""


class Namespace(dict[str, Any]):
    """What a parser gives: attributes are its items."""


def join(*parts: Text) -> Text:
    """`os.path.join`: a part that begins with a slash starts anew."""
    path: Text = ""
    for part in parts:
        if not path or texts.beginning(part).startswith("/"):
            path = part
        elif isinstance(path, str) and path.endswith("/"):
            path = texts.joined([path, part])
        else:
            path = texts.joined([path, "/", part])
    return path


def _with(parts: list[Text], separator: str) -> list[Text]:
    return [piece for at, part in enumerate(parts) for piece in ((separator, part) if at else (part,))]


def plain(value: Any, line: int) -> Any:
    """A value as a caller may have it: a copy, without anything of this module."""
    if value is None or isinstance(value, bool | int | float | str | bytes | Partly | Unresolved):
        return value
    if isinstance(value, PathText):
        return value.text
    if isinstance(value, dict):
        return {_key(key): plain(item, line) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item, line) for item in value)
    if isinstance(value, set | frozenset):
        return set(value)
    if isinstance(value, Imported):
        return Unresolved(line, value.target, "something of another module")
    name = value.name if isinstance(value, Function | Method) else type(value).__name__
    return Unresolved(line, name, "not a plain value")


def _key(key: Any) -> Any:
    return key.text if isinstance(key, PathText) else key
