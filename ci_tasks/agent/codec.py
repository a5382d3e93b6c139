"""Frozen dataclasses to JSON and back: the only place where a record is a dict.

    text = to_json(status)                                  {"version": "1.0", "state": "running", …}
    status = from_json(Status, text, where="status.json")   or RecordError: s.json: gpu_ids[2]: expected int, got str

A field's annotation says what it may hold: str, int, float, bool, None, Literal, Optional and Union
of these, Tuple[X, ...], Tuple[X, Y], List[X], Mapping[str, X], another dataclass, a Union of dataclasses that a Literal
field tells apart, and Any for values of the workflow's own YAML. An unknown key is ignored, a missing one takes the
field's default or is an error. A bool is no int; an int may stand for a float, and has at most 64 bits. What is
decoded may come from anywhere: the reader limits its bytes, this module the number of values.
A `__post_init__` may raise ValueError for what a type cannot say. A field with `metadata=NOT_STORED` stays out.

Standard library only, Python 3.8+: it is zipped with the agent. Knows no file.
"""

import collections.abc
import dataclasses
import functools
import json
import math
import sys
import typing
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union

# A change that an older reader would misunderstand raises the first number.
VERSION = "1.0"
VERSION_KEY = "version"

NOT_STORED = {"stored": False}
# Of a field: what its JSON schema is where the annotation does not say it, and that the key may be missing.
JSON_SCHEMA = "json_schema"

MAX_VALUES = 1_000_000  # of one text: a value takes 60 bytes and more of memory, and two in the text
_MOST_SHOWN = 60
_MAX_INT = 1 << 63  # what a database takes
_MAX_FLOAT = sys.float_info.max
_NAMES = {type(None): "null", dict: "object", collections.abc.Mapping: "object", list: "list", tuple: "list"}

T = TypeVar("T")
_Decoder = Callable[[Any], Any]


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
    return {**({VERSION_KEY: VERSION} if versioned else {}), **_plain(record, compact)}


def decode(kind: Type[T], data: Any, *, where: str) -> T:
    """The record of `kind` that `data`, parsed JSON, holds. `where` names its source in errors."""
    version = data.get(VERSION_KEY, VERSION) if isinstance(data, dict) else VERSION
    if not isinstance(version, str) or version.split(".")[0] != VERSION.split(".")[0]:
        problem = f"this is format {_shown(version)}; this program reads format {VERSION}"
        raise RecordError(where, VERSION_KEY, problem)
    try:
        value: T = _decoder(kind)(data)
    except _WrongValue as wrong:
        raise RecordError(where, wrong.key.lstrip("."), wrong.problem) from None
    return value


def to_json(record: Any, *, indent: Optional[int] = None, versioned: bool = True, compact: bool = False) -> str:
    """The text of `record`. Lone surrogates, of a path that is no UTF-8, stay: escape them when you write the text."""
    data = encode(record, versioned=versioned, compact=compact)
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(kind: Type[T], text: Union[str, bytes], *, where: str) -> T:
    """The record of `kind` in `text`."""
    return decode(kind, parse(text, where=where), where=where)


def parse(text: Union[str, bytes], *, where: str) -> Any:
    """The JSON value in `text`, which may be anything at all."""
    marks: Any = b",[{" if isinstance(text, bytes) else ",[{"
    if sum(text.count(marks[n : n + 1]) for n in range(3)) > MAX_VALUES:
        raise RecordError(where, "", "more than %d values" % MAX_VALUES)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecordError(where, "", f"not JSON: {what[:200]}") from None


def prepare(*kinds: Any) -> None:
    """Resolve the types of records, and of those inside of them, before the first is read: a process that forks does it
    for the others."""
    for kind in kinds:
        is_record = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        prepare(*([field.type for field in _record(kind)] if is_record else typing.get_args(kind)))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _plain(value: Any, compact: bool) -> Any:
    """`value` in JSON's own types."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = [(field, getattr(value, field.name)) for field in _record(type(value))]
        return {field.name: _plain(item, compact) for field, item in pairs if not (compact and field.is_default(item))}
    if isinstance(value, (list, tuple)):
        return [_plain(item, compact) for item in value]
    if isinstance(value, collections.abc.Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, compact) for key, item in value.items()}
    raise TypeError(f"JSON has no {type(value).__name__} such as this")


class _WrongValue(Exception):
    """A value is not what its annotation says. Its key becomes known from the inside out."""

    def __init__(self, problem: str, key: str = "") -> None:
        super().__init__(problem)
        self.problem, self.key = problem, key


def _inside(key: str, decoder: _Decoder, value: Any) -> Any:
    try:
        return decoder(value)
    except _WrongValue as wrong:
        wrong.key = key + wrong.key
        raise


def _unexpected(expected: str, value: Any) -> _WrongValue:
    return _WrongValue(f"expected {expected}, got {_name_of(type(value))}")


class _Field(NamedTuple):
    name: str
    type: Any
    decoder: _Decoder
    default: Callable[[], Any]
    required: bool

    @property
    def tag(self) -> Tuple[Any, ...]:
        """Its one possible value, which tells the members of a Union apart; else empty."""
        choices = typing.get_args(self.type) if typing.get_origin(self.type) is typing.Literal else ()
        return choices if len(choices) == 1 else ()

    def is_default(self, value: Any) -> bool:
        """A tag is never left out."""
        if self.required or self.tag:
            return False
        default = self.default()
        return type(value) is type(default) and bool(value == default)


@functools.lru_cache(maxsize=None)
def _record(kind: type) -> Tuple[_Field, ...]:
    """The fields of a dataclass that are stored, with their types resolved."""
    types = typing.get_type_hints(kind)
    stored = [field for field in dataclasses.fields(kind) if field.init and field.metadata.get("stored", True)]
    if VERSION_KEY in types:
        raise TypeError(f"{kind.__name__}.{VERSION_KEY}: this name is the codec's own")
    fields = []
    for field in stored:
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = field.default_factory if callable(field.default_factory) else functools.partial(_same, field.default)
        fields.append(_Field(field.name, types[field.name], _decoder(types[field.name]), default, missing))
    return tuple(fields)


def _same(value: Any) -> Any:
    return value


def _decoder(kind: Any) -> _Decoder:
    """Gives a value as `kind`, an annotation, and raises _WrongValue. An annotation is looked into once, not for each
    value."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _same
    if origin is typing.Literal:
        return functools.partial(_literal, arguments)
    if origin is Union or type(kind).__name__ == "UnionType":  # X | Y, from Python 3.10 on
        return _union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return functools.partial(_fixed_tuple, [_decoder(one) for one in arguments])
    if origin in (tuple, list):
        return functools.partial(_items, origin, _decoder(arguments[0]))
    if origin in (dict, collections.abc.Mapping) and arguments[0] is str:
        return functools.partial(_mapping, _decoder(arguments[1]))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(_record_of, kind)
    if kind in (str, bool, int, None, type(None)):
        return functools.partial(_exactly, type(None) if kind is None else kind)
    if kind is float:
        return _number
    raise TypeError(f"a record cannot hold {kind}")


def _exactly(kind: Any, value: Any) -> Any:
    if type(value) is not kind:  # a bool is no int
        raise _unexpected(_name_of(kind), value)
    if kind is int and not -_MAX_INT <= value < _MAX_INT:
        raise _WrongValue("the number is too large")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _unexpected("float", value)
    if not -_MAX_FLOAT <= value <= _MAX_FLOAT:
        raise _WrongValue("the number is too large")
    return float(value)


def _literal(allowed: Tuple[Any, ...], value: Any) -> Any:
    for choice in allowed:
        if type(choice) is type(value) and choice == value:
            return choice
    raise _WrongValue(f"expected {_one_of(allowed)}, got {_shown(value)}")


def _union(kinds: Tuple[Any, ...]) -> _Decoder:
    records = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    others = sorted((kind for kind in kinds if kind not in records), key=lambda kind: kind is float)  # 1 stays an int
    decoders = [_decoder(kind) for kind in others if kind is not type(None)]
    may_be_null = type(None) in kinds

    def decoded(value: Any) -> Any:
        if value is None and may_be_null:
            return None
        if records and (isinstance(value, dict) or not decoders):
            return _record_of(_variant(records, value), value)
        if len(decoders) == 1:
            return decoders[0](value)
        for decoder in decoders:
            try:
                return decoder(value)
            except _WrongValue as wrong:
                if wrong.key:  # this kind fits but for something inside of it
                    raise
        raise _unexpected(" or ".join(_name_of(typing.get_origin(kind) or kind) for kind in kinds), value)

    return decoded


def _variant(records: List[Any], value: Any) -> Any:
    """The one of a Union's records whose Literal field has the value's word."""
    if len(records) == 1 or not isinstance(value, dict):
        return records[0]
    tags = [(record, field.name, field.tag[0]) for record in records for field in _record(record) if field.tag]
    for record, name, tag in tags:
        if value.get(name) == tag:
            return record
    expected = _one_of(tuple(tag for _, _, tag in tags))
    raise _WrongValue(f"expected {expected}, got {_shown(value.get(tags[0][1]))}", "." + tags[0][1])


def _items(kind: Callable[[Any], Any], decoder: _Decoder, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _unexpected("list", value)
    return kind([_inside(f"[{n}]", decoder, item) for n, item in enumerate(value)])


def _fixed_tuple(decoders: List[_Decoder], value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _unexpected("list", value)
    if len(value) != len(decoders):
        raise _WrongValue(f"expected {len(decoders)} items, got {len(value)}")
    return tuple(_inside(f"[{n}]", decoder, value[n]) for n, decoder in enumerate(decoders))


def _mapping(decoder: _Decoder, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _unexpected("object", value)
    return {key: _inside(f"[{_shown(key)}]", decoder, item) for key, item in value.items()}


def _record_of(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _unexpected("object", value)
    values = {}
    for field in _record(kind):
        if field.name in value:
            values[field.name] = _inside("." + field.name, field.decoder, value[field.name])
        elif field.required:
            raise _WrongValue("missing", "." + field.name)
    try:
        return kind(**values)
    except ValueError as error:
        raise _WrongValue(str(error)) from None


def _name_of(kind: Any) -> str:
    """A type as an error message names it, never with a value: that may be a secret."""
    return "object" if dataclasses.is_dataclass(kind) else _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _one_of(choices: Tuple[Any, ...]) -> str:
    shown = [_shown(choice) for choice in choices]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def _shown(value: Any) -> str:
    """A short and printable form of a value from outside."""
    if value is None or isinstance(value, (dict, list, tuple)):
        return _name_of(type(value))
    text = ascii(value) if isinstance(value, str) else str(value)[:_MOST_SHOWN]
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"
