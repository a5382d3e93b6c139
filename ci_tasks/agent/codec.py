"""Frozen dataclasses to JSON and back: the only place where a record is a dict.

    text = to_json(status)                                  {"version": "1.0", "state": "running", …}
    status = from_json(Status, text, where="status.json")   or RecordError: s.json: gpu_ids[2]: expected int, got str

A field's annotation says what it may hold: str, int, float, bool, None, Literal, Optional and Union
of these, Tuple[X, ...], Tuple[X, Y], List[X], Mapping[str, X], another dataclass, a Union of dataclasses that a Literal
field tells apart, and Any for values of the workflow's own YAML. An unknown key is ignored, a missing one takes the
field's default or is an error. A bool is no int; an int may stand for a float, and has at most 64 bits. What is
decoded may come from anywhere: the reader limits its bytes, this module the number of values and their nesting.
A `__post_init__` may raise ValueError for what a type cannot say. A field with `metadata=NOT_STORED` stays out.

Standard library only, Python 3.8+: it is zipped with the agent. Knows no file.
"""

import collections.abc
import dataclasses
import functools
import json
import math
import typing
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple, Type, TypeVar, Union

# A change that an older reader would misunderstand raises the first number.
VERSION = "1.0"
VERSION_KEY = "version"

NOT_STORED = {"stored": False}
# Of a field: what its JSON schema is where the annotation does not say it, and that the key may be missing.
JSON_SCHEMA = "json_schema"

MAX_VALUES = 1_000_000  # of one text: a value takes 60 bytes and more of memory, and two in the text
_MOST_SHOWN = 60
_MAX_INT = 1 << 63  # what a database takes
_MAX_DIGITS = 40  # to convert an integer takes the square of its digits
_NAMES = {type(None): "null", dict: "object", list: "list", tuple: "list"}

T = TypeVar("T")


class RecordError(ValueError):
    """`where` (a file, a message) does not hold the expected record; `key` is the path to the wrong value."""

    def __init__(self, where: str, key: str, problem: str) -> None:
        super().__init__(": ".join(part for part in (where, key, problem) if part))
        self.where, self.key, self.problem = where, key, problem


def encode(record: Any, *, versioned: bool = True, compact: bool = False) -> Dict[str, Any]:
    """`record`, a dataclass, as JSON's own types; with the format's version first, unless what holds it has one.
    `compact` leaves out what is at its default."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"no record: {type(record).__name__}")
    head = {VERSION_KEY: VERSION} if versioned else {}
    return {**head, **_plain(record, compact)}


def decode(kind: Type[T], data: Any, *, where: str) -> T:
    """The record of `kind` that `data`, parsed JSON, holds. `where` names its source in errors."""
    if isinstance(data, dict) and VERSION_KEY in data:
        _check_version(where, data[VERSION_KEY])
    value: T = _decode(kind, data, _Place(where, ""))
    return value


def to_json(record: Any, *, indent: Optional[int] = None, versioned: bool = True, compact: bool = False) -> str:
    """The text of `record`. Lone surrogates, of a path that is no UTF-8, stay: whoever writes it escapes them."""
    data = encode(record, versioned=versioned, compact=compact)
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(kind: Type[T], text: Union[str, bytes], *, where: str) -> T:
    """The record of `kind` in `text`."""
    return decode(kind, parse(text, where=where), where=where)


def parse(text: Union[str, bytes], *, where: str) -> Any:
    """The JSON value in `text`, which may be anything at all."""
    if _count_values(text) > MAX_VALUES:
        raise RecordError(where, "", "more than %d values" % MAX_VALUES)
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_bounded_int)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecordError(where, "", f"not JSON: {what[:200]}") from None


def prepare(*kinds: Any) -> None:
    """Resolve the types of records, and of those inside of them, before the first is read: a process that forks does it
    for the others."""
    for kind in kinds:
        is_record = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        prepare(*([field.type for field in _fields(kind)] if is_record else typing.get_args(kind)))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _count_values(text: Union[str, bytes]) -> int:
    """At least as many as the text has; those of a string are counted too."""
    if isinstance(text, bytes):
        return text.count(b",") + text.count(b"[") + text.count(b"{")
    return text.count(",") + text.count("[") + text.count("{")


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number of %d digits" % len(digits))
    return int(digits)


def _check_version(where: str, version: Any) -> None:
    if not isinstance(version, str) or version.split(".")[0] != VERSION.split(".")[0]:
        raise RecordError(where, VERSION_KEY, f"this is format {_shown(version)}; this program reads format {VERSION}")


def _plain(value: Any, compact: bool) -> Any:
    """`value` in JSON's own types."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in _fields(type(value)))
        return {field.name: _plain(item, compact) for field, item in pairs if not (compact and field.is_default(item))}
    if isinstance(value, (list, tuple)):
        return [_plain(item, compact) for item in value]
    if isinstance(value, collections.abc.Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the keys of a JSON object are texts, not {type(key).__name__}")
        return {key: _plain(item, compact) for key, item in value.items()}
    raise TypeError(f"JSON has no {type(value).__name__}")


class _Place(NamedTuple):
    """Where in the data a value is: its source, and the path of keys to it."""

    where: str
    key: str

    def at(self, name: str) -> "_Place":
        return _Place(self.where, f"{self.key}.{name}" if self.key else name)

    def item(self, index: Union[int, str]) -> "_Place":
        return _Place(self.where, f"{self.key}[{index if isinstance(index, int) else _shown(index)}]")

    def wrong(self, expected: str, value: Any) -> RecordError:
        return self.error(f"expected {expected}, got {_name_of(value)}")

    def error(self, problem: str) -> RecordError:
        return RecordError(self.where, self.key, problem)


class _Field(NamedTuple):
    name: str
    type: Any
    default: Any  # MISSING where there is none
    factory: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING and self.factory is dataclasses.MISSING

    def is_default(self, value: Any) -> bool:
        """A Literal is what tells the members of a Union apart, and is never left out."""
        if _is_literal(self.type) and len(typing.get_args(self.type)) == 1:
            return False
        default = self.factory() if self.factory is not dataclasses.MISSING else self.default
        return type(value) is type(default) and bool(value == default)


@functools.lru_cache(maxsize=None)
def _fields(kind: type) -> Tuple[_Field, ...]:
    """The fields of a dataclass that are stored, with their types resolved."""
    types = typing.get_type_hints(kind)
    fields = []
    for field in dataclasses.fields(kind):
        if field.name == VERSION_KEY:
            raise TypeError(f"{kind.__name__}.{VERSION_KEY}: this name is the codec's own")
        if field.init and field.metadata.get("stored", True):
            fields.append(_Field(field.name, types[field.name], field.default, field.default_factory))
    return tuple(fields)


def _decode(kind: Any, value: Any, place: _Place) -> Any:
    """`value` as `kind`, an annotation."""
    if kind is Any:
        return value
    if kind is None or kind is type(None):
        return _exactly(type(None), value, place)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return _literal(arguments, value, place)
    if origin is Union or type(kind).__name__ == "UnionType":  # X | Y, from Python 3.10 on
        return _union(arguments, value, place)
    if origin is tuple:
        return _tuple(arguments, value, place)
    if origin is list:
        return _items(arguments[0], value, place)
    if origin in (dict, collections.abc.Mapping) and arguments[0] is str:
        return _mapping(arguments[1], value, place)
    if isinstance(kind, type):
        if dataclasses.is_dataclass(kind):
            return _record(kind, value, place)
        if kind is float:
            return _number(value, place)
        if kind in (str, int, bool):
            return _exactly(kind, value, place)
    raise TypeError(f"a record cannot hold {kind}")


def _exactly(kind: type, value: Any, place: _Place) -> Any:
    if type(value) is not kind:  # a bool is no int
        raise place.wrong(_label(kind), value)
    if type(value) is int and not -_MAX_INT <= value < _MAX_INT:
        raise place.error("the number is too large")
    return value


def _number(value: Any, place: _Place) -> float:
    if type(value) not in (int, float):
        raise place.wrong("float", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise place.error("the number is too large")
    return number


def _literal(allowed: Tuple[Any, ...], value: Any, place: _Place) -> Any:
    for choice in allowed:
        if type(choice) is type(value) and choice == value:
            return choice
    raise place.error(f"expected {_one_of(allowed)}, got {_shown(value)}")


def _union(kinds: Tuple[Any, ...], value: Any, place: _Place) -> Any:
    records: List[Any] = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    if records and isinstance(value, dict):
        return _record(records[0] if len(records) == 1 else _variant(records, value, place), value, place)
    first: Optional[RecordError] = None
    for kind in sorted(kinds, key=lambda kind: kind is float):  # 1 stays an int where both may be
        try:
            return _decode(kind, value, place)
        except RecordError as error:
            deeper = len(error.key) > len(first.key if first else place.key)
            first = error if deeper else first
    if first is not None:  # one of the kinds fits but for something inside of it
        raise first
    named = [kind for kind in kinds if kind is not type(None)]
    if len(named) == 1:
        return _decode(named[0], value, place)  # its own message is the better one
    raise place.wrong(" or ".join(_label(kind) for kind in kinds), value)


@functools.lru_cache(maxsize=None)
def _tags(kind: type) -> Tuple[Tuple[str, Any], ...]:
    """The fields of a record that have one possible value each: they tell the members of a Union apart."""
    single = [(field.name, typing.get_args(field.type)) for field in _fields(kind) if _is_literal(field.type)]
    return tuple((name, values[0]) for name, values in single if len(values) == 1)


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _variant(records: List[Any], value: Dict[str, Any], place: _Place) -> Any:
    for record in records:
        if all(value.get(name) == tag for name, tag in _tags(record)):
            return record
    tags = [tag for record in records for tag in _tags(record)]
    if not tags:
        raise TypeError(f"a record cannot hold a Union of {len(records)} dataclasses without a Literal field")
    key = tags[0][0]
    raise place.at(key).error(f"expected {_one_of(tuple(value for _, value in tags))}, got {_shown(value.get(key))}")


def _tuple(kinds: Tuple[Any, ...], value: Any, place: _Place) -> Tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_items(kinds[0], value, place))
    if not isinstance(value, (list, tuple)):
        raise place.wrong("list", value)
    if len(value) != len(kinds):
        raise place.error(f"expected {len(kinds)} items, got {len(value)}")
    return tuple(_decode(kind, value[n], place.item(n)) for n, kind in enumerate(kinds))


def _items(kind: Any, value: Any, place: _Place) -> List[Any]:
    if not isinstance(value, (list, tuple)):
        raise place.wrong("list", value)
    return [_decode(kind, item, place.item(n)) for n, item in enumerate(value)]


def _mapping(kind: Any, value: Any, place: _Place) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise place.wrong("object", value)
    for key in value:
        if not isinstance(key, str):
            raise place.wrong("an object with texts as keys", key)
    return {key: _decode(kind, item, place.item(key)) for key, item in value.items()}


def _record(kind: type, value: Any, place: _Place) -> Any:
    if not isinstance(value, dict):
        raise place.wrong("object", value)
    values = {}
    for field in _fields(kind):
        if field.name in value:
            values[field.name] = _decode(field.type, value[field.name], place.at(field.name))
        elif field.required:
            raise place.at(field.name).error("missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise place.error(str(error)) from None


def _label(kind: Any) -> str:
    """An annotation as an error message names it."""
    if _is_literal(kind):
        return _one_of(typing.get_args(kind))
    origin = typing.get_origin(kind) or kind
    if origin in (tuple, list):
        return "list"
    if origin in (dict, collections.abc.Mapping) or dataclasses.is_dataclass(kind):
        return "object"
    return _NAMES.get(origin, getattr(origin, "__name__", str(origin)))


def _name_of(value: Any) -> str:
    """The type of a value, without the value: it may be a secret."""
    return _NAMES.get(type(value), type(value).__name__)


def _one_of(choices: Tuple[Any, ...]) -> str:
    shown = [_shown(choice) for choice in choices]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def _shown(value: Any) -> str:
    """A short and printable form of a value from outside."""
    if value is None:
        return "null"
    if isinstance(value, (dict, list, tuple)):
        return _name_of(value)
    text = ascii(value) if isinstance(value, str) else str(value)[:_MOST_SHOWN]
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"
