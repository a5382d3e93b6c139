"""Frozen dataclasses to JSON and back: the only place where a record is a dict.

    text = to_json(status)                                  {"version": "1.0", "state": "running", …}
    status = from_json(Status, text, where="status.json")   or RecordError: s.json: gpu_ids[2]: expected int, got str

A field's annotation says what it may hold: str, int, float, bool, None, Literal, Optional and Union of these,
Tuple[X, ...], Tuple[X, Y], List[X], Mapping[str, X], another dataclass, and Any for values of the workflow's own YAML.
An unknown key is ignored, a missing one takes the field's default or is an error. A bool is no int; an int may stand
for a float, and has at most 64 bits. What is decoded may come from anywhere: the reader limits its bytes, this module
the number of values. A `__post_init__` may raise ValueError for what a type cannot say. A field with
`metadata=NOT_STORED` stays out.

Standard library only, Python 3.8+: it is zipped with the agent. Knows no file.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import json
import math
import re
import sys
import typing
from typing import Any, Dict, Optional, Sequence, Tuple, Type, TypeVar, Union

from .mask import mask_text

# A change that an older reader would misunderstand raises the first number.
VERSION = "1.0"
VERSION_KEY = "version"

NOT_STORED = {"stored": False}
# Of a field: what its JSON schema is where the annotation does not say it, and that the key may be missing.
JSON_SCHEMA = "json_schema"

MAX_VALUES = 1_000_000  # of one text: a value takes 60 bytes and more of memory, and two in the text
_MOST_SHOWN = 60
_SINGLE = (str, bool, int, float, type(None))
_LARGEST: Dict[Any, Any] = {int: (1 << 63) - 1, float: sys.float_info.max}  # what a database takes
_FIELD = re.compile(r"[a-z_0-9]+\Z")  # of a record; other keys are names of packages
_NAMES = {type(None): "null", dict: "object", list: "list", tuple: "list"}

T = TypeVar("T")


class RecordError(ValueError):
    """`where` (a file, a message) does not hold the expected record; `key` is the path to the wrong value."""

    def __init__(self, where: str, key: str, problem: str) -> None:
        super().__init__(": ".join(part for part in (where, key, problem) if part))
        self.key, self.problem = key, problem


# -- writing -----------------------------------------------------------------------------------------------------------


def encode(record: Any, *, versioned: bool = True, compact: bool = False) -> Dict[str, Any]:
    """`record`, a dataclass, as JSON's own types; with the format's version first, unless what holds it has one.
    `compact` leaves out what is at its default."""
    if not _is_record(type(record)):
        raise TypeError(f"no record: {type(record).__name__}")
    return {**({VERSION_KEY: VERSION} if versioned else {}), **_plain(record, compact)}


def to_json(record: Any, *, indent: Optional[int] = None, versioned: bool = True, compact: bool = False) -> str:
    """The text of `record`. Lone surrogates, of a path that is no UTF-8, stay: escape them when you write the text."""
    data = encode(record, versioned=versioned, compact=compact)
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)


def to_line(record: Any) -> str:
    """The same in short, as ASCII without line separators: so it carries what is no UTF-8, too."""
    return json.dumps(encode(record, versioned=False, compact=True), separators=(",", ":"), allow_nan=False)


def masked_record(record: T, values: Sequence[str]) -> T:
    """The record with every secret in its texts replaced. Its numbers stay."""
    data = encode(record) if values else {}
    shown = _masked_texts(data, values)
    try:
        return decode(type(record), shown, where="masked") if shown != data else record
    except RecordError:  # a word that is a state of ours: not masked, or the state would be unknown
        return record


def _masked_texts(value: Any, values: Sequence[str]) -> Any:
    if isinstance(value, str):
        return mask_text(values, value)
    if isinstance(value, list):
        return [_masked_texts(item, values) for item in value]
    if isinstance(value, dict):
        pairs = [(key, _masked_texts(item, values)) for key, item in value.items()]
        return {key if _FIELD.match(key) else mask_text(values, key): item for key, item in pairs}
    return value


def _plain(value: Any, compact: bool) -> Any:
    """`value` in JSON's own types."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if _is_record(type(value)):
        kind: Any = type(value)
        named = [(name, getattr(value, name), default) for name, _, default in _fields(kind)]
        kept = [each for each in named if not (compact and type(each[1]) is type(each[2]) and each[1] == each[2])]
        return {name: _plain(item, compact) for name, item, _ in kept}
    if isinstance(value, (list, tuple)):
        return [_plain(item, compact) for item in value]
    if isinstance(value, collections.abc.Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, compact) for key, item in value.items()}
    raise TypeError(f"JSON has no {type(value).__name__} such as this")


# -- reading -----------------------------------------------------------------------------------------------------------


def from_json(kind: Type[T], text: Union[str, bytes], *, where: str) -> T:
    """The record of `kind` in `text`. Raises RecordError."""
    return decode(kind, parse(text, where=where), where=where)


def parse(text: Union[str, bytes], *, where: str) -> Any:
    """The JSON value in `text`, which may be anything at all. Raises RecordError."""
    marks: Any = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, marks)) > MAX_VALUES:
        raise RecordError(where, "", "more than %d values" % MAX_VALUES)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(where, "", f"not JSON: {str(error)[:200]}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def decode(kind: Type[T], data: Any, *, where: str) -> T:
    """The record of `kind` that `data`, parsed JSON, holds. `where` names its source in errors. Raises RecordError."""
    version = data.get(VERSION_KEY, VERSION) if isinstance(data, dict) else VERSION
    if not isinstance(version, str) or version.split(".")[0] != VERSION.split(".")[0]:
        problem = f"this is format {_shown(version)}; this program reads format {VERSION}"
        raise RecordError(where, VERSION_KEY, problem)
    try:
        value: T = _value(kind, data, "")
    except RecordError as error:
        raise RecordError(where, error.key.lstrip("."), error.problem) from None
    return value


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> Tuple[Tuple[str, Any, Any], ...]:
    """The name, type and default of each field of a dataclass that is stored. One without a default has MISSING."""
    types, stored = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        if field.init and field.metadata.get("stored", True):
            default = field.default_factory() if callable(field.default_factory) else field.default
            stored.append((field.name, types[field.name], default))
    return tuple(stored)


@functools.lru_cache(maxsize=None)
def _parts(kind: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """What an annotation is (a record, Union, tuple, list, dict, Literal, or None for a single value), and its
    arguments."""
    if _is_record(kind):
        return _record, ()
    origin, is_union = typing.get_origin(kind), type(kind).__name__ == "UnionType"  # X | Y, from Python 3.10 on
    return Union if is_union else dict if origin is collections.abc.Mapping else origin, typing.get_args(kind)


def _value(kind: Any, value: Any, key: str) -> Any:
    """`value`, at `key`, as `kind`, an annotation."""
    if kind is Any or (kind is str and type(value) is str):  # most are
        return value
    origin, arguments = _parts(kind)
    if origin is _record:
        return _record(kind, value, key)
    if origin is Union:
        return _member(arguments, value, key)
    if origin is typing.Literal:
        if any(type(choice) is type(value) and choice == value for choice in arguments):
            return value
        raise RecordError("", key, f"expected one of {', '.join(map(repr, arguments))}, got {_shown(value)}")
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise _unexpected("list", value, key)
        kinds = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        if len(kinds) != len(value):
            raise RecordError("", key, f"expected {len(kinds)} items, got {len(value)}")
        return origin([_value(kinds[at], item, f"{key}[{at}]") for at, item in enumerate(value)])
    if origin is dict:
        if not isinstance(value, dict):
            raise _unexpected("object", value, key)
        return {name: _value(arguments[1], item, f"{key}[{_shown(name)}]") for name, item in value.items()}
    if kind not in _SINGLE:
        raise TypeError(f"a record cannot hold {kind}")
    if type(value) is not kind and not (kind is float and type(value) is int):  # a bool is no int
        raise _unexpected(_name_of(kind), value, key)
    if kind in _LARGEST and abs(value) > _LARGEST[kind]:
        raise RecordError("", key, "the number is too large")
    return float(value) if kind is float else value


def _record(kind: Any, value: Any, key: str) -> Any:
    if not isinstance(value, dict):
        raise _unexpected("object", value, key)
    values = {}
    for name, inner, default in _fields(kind):
        if name in value:
            values[name] = _value(inner, value[name], f"{key}.{name}")
        elif default is dataclasses.MISSING:
            raise RecordError("", f"{key}.{name}", "missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise RecordError("", key, str(error)) from None


def _member(kinds: Sequence[Any], value: Any, key: str) -> Any:
    """As the first of a Union's kinds that takes it."""
    given = [kind for kind in kinds if kind is not type(None)]
    if value is None and len(given) < len(kinds):
        return None
    if len(given) == 1:
        return _value(given[0], value, key)
    for kind in given:
        with contextlib.suppress(RecordError):
            return _value(kind, value, key)
    raise _unexpected(" or ".join(map(_name_of, kinds)), value, key)


def _unexpected(expected: str, value: Any, key: str) -> RecordError:
    return RecordError("", key, f"expected {expected}, got {_name_of(type(value))}")


def _name_of(kind: Any) -> str:
    """A type as an error message names it, never with a value: that may be a secret."""
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _shown(value: Any) -> str:
    """A short and printable form of a value from outside."""
    return ascii(value)[:_MOST_SHOWN] if isinstance(value, (str, int, float)) else _name_of(type(value))
