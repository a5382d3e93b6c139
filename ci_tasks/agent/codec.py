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
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Tuple, Type, TypeVar, Union

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
    head = {VERSION_KEY: VERSION} if versioned else {}
    return {**head, **_plain(record, compact)}


def decode(kind: Type[T], data: Any, *, where: str) -> T:
    """The record of `kind` that `data`, parsed JSON, holds. `where` names its source in errors."""
    if isinstance(data, dict) and VERSION_KEY in data:
        _check_version(where, data[VERSION_KEY])
    try:
        value: T = _decoder(kind)(data)
    except _WrongValue as wrong:
        raise RecordError(where, wrong.key, wrong.problem) from None
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
        if is_record:
            _record_decoder(kind)
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


class _WrongValue(Exception):
    """A value is not what its annotation says. Its key becomes known from the inside out."""

    def __init__(self, problem: str, *keys: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self._keys = list(keys)

    @property
    def key(self) -> str:
        key = "".join(reversed(self._keys))
        return key[1:] if key.startswith(".") else key

    def is_inside(self, key: str) -> None:
        self._keys.append(key)


def _unexpected(expected: str, value: Any) -> _WrongValue:
    return _WrongValue(f"expected {expected}, got {_name_of(value)}")


class _Field(NamedTuple):
    name: str
    type: Any
    default: Any  # MISSING where there is none
    factory: Any
    is_tag: bool  # it has one possible value, which tells the members of a Union apart

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING and self.factory is dataclasses.MISSING

    def is_default(self, value: Any) -> bool:
        """A tag is never left out."""
        if self.is_tag:
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
            type_ = types[field.name]
            is_tag = _is_literal(type_) and len(typing.get_args(type_)) == 1
            fields.append(_Field(field.name, type_, field.default, field.default_factory, is_tag))
    return tuple(fields)


def _decoder(kind: Any) -> _Decoder:
    """Gives a value as `kind`, an annotation, and raises _WrongValue. An annotation is looked into once, not for each
    value."""
    if kind is Any:
        return lambda value: value
    if kind is None or kind is type(None):
        return _exactly(type(None))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is Union or type(kind).__name__ == "UnionType":  # X | Y, from Python 3.10 on
        return _union(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is list:
        return _items(arguments[0])
    if origin in (dict, collections.abc.Mapping) and arguments[0] is str:
        return _mapping(arguments[1])
    if isinstance(kind, type):
        if dataclasses.is_dataclass(kind):
            return lambda value: _record_decoder(kind)(value)  # it may hold others of its kind
        if kind is float:
            return _number
        if kind is int:
            return _integer
        if kind in (str, bool):
            return _exactly(kind)
    raise TypeError(f"a record cannot hold {kind}")


def _exactly(kind: type) -> _Decoder:
    def decoded(value: Any) -> Any:
        if type(value) is not kind:
            raise _unexpected(_label(kind), value)
        return value

    return decoded


def _integer(value: Any) -> int:
    if type(value) is not int:  # a bool is none
        raise _unexpected("int", value)
    if not -_MAX_INT <= value < _MAX_INT:
        raise _WrongValue("the number is too large")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _unexpected("float", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _WrongValue("the number is too large")
    return number


def _literal(allowed: Tuple[Any, ...]) -> _Decoder:
    def decoded(value: Any) -> Any:
        for choice in allowed:
            if type(choice) is type(value) and choice == value:
                return choice
        raise _WrongValue(f"expected {_one_of(allowed)}, got {_shown(value)}")

    return decoded


def _union(kinds: Tuple[Any, ...]) -> _Decoder:
    named = [kind for kind in kinds if kind is not type(None)]
    if len(named) == 1:
        decode_named = _decoder(named[0])
        return lambda value: None if value is None else decode_named(value)
    records: List[Any] = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    decoders = [_decoder(kind) for kind in sorted(kinds, key=lambda kind: kind is float)]  # 1 stays an int

    def decoded(value: Any) -> Any:
        if records and isinstance(value, dict):
            return _record_decoder(records[0] if len(records) == 1 else _variant(records, value))(value)
        deepest: Optional[_WrongValue] = None
        for decoder in decoders:
            try:
                return decoder(value)
            except _WrongValue as wrong:
                if len(wrong.key) > (len(deepest.key) if deepest else 0):
                    deepest = wrong
        if deepest is not None:  # one of the kinds fits but for something inside of it
            raise deepest
        raise _unexpected(" or ".join(_label(kind) for kind in kinds), value)

    return decoded


@functools.lru_cache(maxsize=None)
def _tags(kind: type) -> Tuple[Tuple[str, Any], ...]:
    """The fields of a record that have one possible value each: they tell the members of a Union apart."""
    return tuple((field.name, typing.get_args(field.type)[0]) for field in _fields(kind) if field.is_tag)


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _variant(records: List[Any], value: Dict[str, Any]) -> Any:
    for record in records:
        if all(value.get(name) == tag for name, tag in _tags(record)):
            return record
    tags = [tag for record in records for tag in _tags(record)]
    if not tags:
        raise TypeError(f"a record cannot hold a Union of {len(records)} dataclasses without a Literal field")
    key = tags[0][0]
    expected = _one_of(tuple(value for _, value in tags))
    raise _WrongValue(f"expected {expected}, got {_shown(value.get(key))}", "." + key)


def _tuple(kinds: Tuple[Any, ...]) -> _Decoder:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        decode_items = _items(kinds[0])
        return lambda value: tuple(decode_items(value))
    decoders = [_decoder(kind) for kind in kinds]

    def decoded(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise _unexpected("list", value)
        if len(value) != len(decoders):
            raise _WrongValue(f"expected {len(decoders)} items, got {len(value)}")
        return tuple(_each((decoder, value[n]) for n, decoder in enumerate(decoders)))

    return decoded


def _items(kind: Any) -> _Decoder:
    decoder = _decoder(kind)

    def decoded(value: Any) -> List[Any]:
        if not isinstance(value, (list, tuple)):
            raise _unexpected("list", value)
        return _each((decoder, item) for item in value)

    return decoded


def _each(pairs: Iterable[Tuple[_Decoder, Any]]) -> List[Any]:
    """Each value by its decoder."""
    decoded: List[Any] = []
    try:
        for decoder, item in pairs:
            decoded.append(decoder(item))
    except _WrongValue as wrong:
        wrong.is_inside(f"[{len(decoded)}]")
        raise
    return decoded


def _mapping(kind: Any) -> _Decoder:
    decoder = _decoder(kind)

    def decoded(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("object", value)
        for key in value:
            if not isinstance(key, str):
                raise _unexpected("an object with texts as keys", key)
        values = {}
        for key, item in value.items():
            try:
                values[key] = decoder(item)
            except _WrongValue as wrong:
                wrong.is_inside(f"[{_shown(key)}]")
                raise
        return values

    return decoded


@functools.lru_cache(maxsize=None)
def _record_decoder(kind: type) -> _Decoder:
    fields = [(field.name, _decoder(field.type), field.required) for field in _fields(kind)]

    def decoded(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _unexpected("object", value)
        values = {}
        for name, decoder, is_required in fields:
            if name in value:
                try:
                    values[name] = decoder(value[name])
                except _WrongValue as wrong:
                    wrong.is_inside("." + name)
                    raise
            elif is_required:
                raise _WrongValue("missing", "." + name)
        try:
            return kind(**values)
        except ValueError as error:
            raise _WrongValue(str(error)) from None

    return decoded


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
