"""What a reading gives: calls with their arguments, checks, constants, and what could not be known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAIN, PYTEST, NONE = "main", "pytest", "none"


@dataclass(frozen=True)
class Unresolved:
    """A value that only a run would give: the 1-based line and text of the expression, and why it is not known."""

    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"⟨{self.text}⟩"


@dataclass(frozen=True)
class Partly:
    """A text of which some parts are known: strings, and `Unresolved` where a part is not."""

    parts: tuple[str | Unresolved, ...]

    def __str__(self) -> str:
        return "".join(str(part) for part in self.parts)

    @property
    def holes(self) -> tuple[Unresolved, ...]:
        return tuple(part for part in self.parts if isinstance(part, Unresolved))


Text = str | Partly


@dataclass(frozen=True)
class Call:
    """A call of something that the test itself does not define.

    `name` is as written ("U.exec_command"), `target` as imported ("slime.utils….exec_command"; "" where the callee is
    a value, such as a file that was opened). Arguments are plain values (None, bool, numbers, str, list, tuple, dict,
    set) in which a `Partly` or an `Unresolved` may stand. `function` is the one that the call is written in ("" at the
    top of the file), `via` the functions that led there, and `entry` what began it: a test's name under pytest, else
    "". `conditions` are the source texts of what must hold for the call to happen, and is not known.
    """

    name: str
    target: str
    function: str
    line: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    conditions: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    entry: str = ""
    file: str = ""

    @property
    def unresolved(self) -> tuple[Unresolved, ...]:
        """Everything in the arguments that is not known."""
        return tuple(holes([*self.args, *self.kwargs.values()]))


@dataclass(frozen=True)
class Check:
    """An assertion. `after` is how many of the reading's calls come before it; `message` is "" where there is none."""

    line: int
    function: str
    text: str
    message: str
    after: int
    conditions: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    entry: str = ""
    file: str = ""


@dataclass(frozen=True)
class Reading:
    """What a test file does, in the order in which it would. `entry` is how it begins: a `__main__` block (`main`),
    pytest which that block calls (`pytest`), or not at all (`none`): then what pytest would collect was read.

    `doc` is the module's docstring, `tests` the names of its test functions, and `problem` says why nothing, or not
    everything, was read: a syntax error, or a source that does more than a reading follows.
    """

    calls: tuple[Call, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    tests: tuple[str, ...] = ()
    entry: str = NONE
    doc: str = ""
    problem: Unresolved | None = None


def holes(value: Any) -> Iterator[Unresolved]:
    """Every `Unresolved` in a value, however deep."""
    if isinstance(value, Unresolved):
        yield value
    elif isinstance(value, Partly):
        yield from value.holes
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from holes(key)
            yield from holes(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from holes(item)
