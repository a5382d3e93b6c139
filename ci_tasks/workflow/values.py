"""The values of GitHub's expressions, and how GitHub turns one kind of value into another.

Null, boolean, number, string, array and object, as None, bool, int or float, str, list and dict; and Unknown, for what
only GitHub knows. The rules follow the documentation page "Evaluate expressions in workflows and actions" (Literals,
Operators). If it does not say enough, they follow actions/runner's C# source (`EvaluationResult`, `ExpressionUtility`,
`Operators/Index`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ci_tasks.agent.quick_dataclass import dataclass

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | Unknown | None"

_DECIMAL = r"(?i)[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?infinity"
_RADIX = r"0x[0-9a-fA-F]+|0o[0-7]+"
# bool comes first, since Python's True is an int as well.
_KINDS = ((bool, "Boolean"), (int, "Number"), (float, "Number"), (str, "String"), (list, "Array"), (dict, "Object"))


class FilteredArray(list[Value]):
    """What `*` gives: an array whose next property or index applies to each of its items."""


@dataclass(frozen=True)
class Unknown:
    """A value that only GitHub knows. `names` are what it comes from, such as `vars.REGISTRY`; `text` shows it.

    `holds`: whether it is true, if that is known although the value is not. `absent`: here it is null wherever it is
    compared or tested, as GitHub has it elsewhere (a secret for a fork's pull request); only its text is unknown.
    `named`: it is what its name says, so that `.key` has a name as well.
    """

    names: tuple[str, ...]
    text: str = ""
    holds: bool | None = None
    absent: bool = False
    named: bool = False

    @classmethod
    def named_value(cls, name: str, *, absent: bool = False) -> Unknown:
        return cls((name,), holds=False if absent else None, absent=absent, named=True)


class OpenObject(dict[str, Value]):
    """An object with some known members: any other is Unknown. `name` is its own, such as `vars`."""

    def __init__(self, name: str, members: Mapping[str, Value] | None = None, *, absent: bool = False) -> None:
        super().__init__(members or {})
        self.name, self.absent = name, absent

    def member(self, key: str) -> Unknown:
        return Unknown.named_value(f"{self.name}.{key}", absent=self.absent)

    def compared(self, text: str) -> str | Unknown:
        """What an expression compares for `text`: a member may replace another text."""
        return text


def unknowns(value: Value) -> Iterator[Unknown]:
    """The unknown values in a value, at any depth."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, Unknown):
            yield current
        elif isinstance(current, OpenObject):
            yield Unknown.named_value(current.name)
        inside = current.values() if isinstance(current, dict) else current if isinstance(current, list) else ()
        pending.extend(reversed(list(inside)))


def combined(values: Iterable[Value], *, text: str = "", holds: bool | None = None) -> Unknown:
    """The unknown result of something that needs all of the values."""
    names = [name for value in values for unknown in unknowns(value) for name in unknown.names]
    return Unknown(tuple(dict.fromkeys(names)), text, holds)


def settled(value: Value) -> Value:
    """The value for a comparison or a test: null for what is absent here."""
    return None if isinstance(value, Unknown) and value.absent else value


def truth(value: Value) -> bool | None:
    """False for null, false, 0, NaN and ''; true for the rest, empty arrays and objects too; None if it is unknown."""
    if isinstance(value, Unknown):
        return value.holds
    return isinstance(value, (list, dict)) or (bool(value) and value == value)


def leaves(value: Any) -> list[Any]:
    """The scalars in a value of YAML, in order."""
    inside = list(value.values()) if isinstance(value, Mapping) else value
    return [leaf for item in inside for leaf in leaves(item)] if isinstance(inside, list) else [value]


def shown(value: Value) -> str:
    """As `to_string`, for a person: what is unknown by its name."""
    if isinstance(value, Unknown):
        return value.text or f"<{', '.join(value.names)}>"
    return to_string(value)


def kind(value: Value) -> str:
    """GitHub's name for the kind of a value: Null, Boolean, Number, String, Array or Object."""
    return next((name for python_type, name in _KINDS if isinstance(value, python_type)), "Null")


def is_primitive(value: Value) -> bool:
    """True of everything but arrays and objects, which GitHub never coerces."""
    return not isinstance(value, (list, dict))


def as_number(value: float) -> int | float:
    """The same number, as an int if it is a whole one: GitHub has doubles only and prints 1.0 as 1."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def parse_number(text: str) -> float:
    """The number a string stands for: '' is 0, what is no number is NaN."""
    text = text.strip()
    if re.fullmatch(_RADIX, text):
        number = int(text, 0)
        return float(number) if number.bit_length() <= 1024 - 1 else math.inf
    return float(text or 0) if not text or re.fullmatch(_DECIMAL, text) else math.nan


def to_number(value: Value) -> float:
    """null is 0, booleans are 0 and 1, strings are parsed, arrays and objects are NaN."""
    if isinstance(value, str):
        return parse_number(value)
    return float(value or 0) if isinstance(value, (int, float, type(None))) else math.nan


def to_string(value: Value) -> str:
    """As GitHub writes a value into text: null is '', numbers have 15 digits, others are 'Array' and 'Object'."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        if math.isfinite(value):
            return f"{float(value):.15g}".upper() if value else "0"
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, str) else kind(value)


def loose_equal(left: Value, right: Value) -> bool:
    """GitHub's ==: across kinds as numbers, strings without regard to case, arrays and objects by identity."""
    if isinstance(left, str) and isinstance(right, str):
        return fold(left) == fold(right)
    if kind(left) == kind(right):
        return left == right if is_primitive(left) else left is right
    return to_number(left) == to_number(right)


def less(left: Value, right: Value) -> bool:
    """GitHub's <: numbers by size, strings by their upper-case ordinals; never true of arrays and objects."""
    if isinstance(left, str) and isinstance(right, str):
        return fold(left) < fold(right)
    return to_number(left) < to_number(right)


def fold(text: str) -> str:
    """Text for a comparison without regard to case, character by character as .NET's OrdinalIgnoreCase does.

    Not `casefold`, which would make 'ß' equal to 'ss'.
    """
    return "".join(upper if len(upper := char.upper()) == 1 else char for char in text)


def lookup(mapping: Mapping[str, Value], name: str, *, exact: bool = False) -> list[Value]:
    """The value under a name, in a list of one, or an empty list; without regard to case unless `exact`."""
    if name in mapping:
        return [mapping[name]]
    folded = fold(name)
    return [value for key, value in mapping.items() if not exact and fold(key) == folded][:1]


def index(of: Value, key: Value, *, exact: bool = False) -> Value:
    """`of.key` and `of[key]`: null for what is not there; over a filtered array, those items that have it."""
    of, key = settled(of), settled(key)
    if isinstance(of, Unknown):
        is_name = of.named and not isinstance(key, Unknown) and is_primitive(key)
        return Unknown.named_value(f"{of.names[0]}.{to_string(key)}") if is_name else combined([of, key])
    if isinstance(key, Unknown):
        return combined([key]) if isinstance(of, (dict, list)) else None
    if isinstance(of, FilteredArray):
        return FilteredArray(hit for item in of for hit in _select(item, key, exact))
    return next(iter(_select(of, key, exact)), None)


def wildcard(of: Value) -> FilteredArray | Unknown:
    """`of.*` and `of[*]`: the values of an object or array; over a filtered array, the values of its items."""
    of = settled(of)
    if isinstance(of, (Unknown, OpenObject)):
        return combined([of])
    return FilteredArray(value for item in (of if isinstance(of, FilteredArray) else [of]) for value in _members(item))


def _members(of: Value) -> list[Value]:
    if isinstance(of, (Unknown, OpenObject)):
        return [combined([of])]
    return list(of.values()) if isinstance(of, dict) else of if isinstance(of, list) else []


def _select(of: Value, key: Value, exact: bool) -> list[Value]:
    if isinstance(of, dict) and is_primitive(key):
        hits = lookup(of, to_string(key), exact=exact)
        return hits or [of.member(to_string(key))] if isinstance(of, OpenObject) else hits
    if isinstance(of, Unknown):
        return [index(of, key)]
    if isinstance(of, list):
        position = to_number(key)
        return [of[int(position)]] if 0 <= position < len(of) else []
    return []
