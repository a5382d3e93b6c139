"""The codec: what a record's annotations accept, what every refusal says, and that nothing changes on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035  # both spellings are read

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent import codec
from ci_tasks.agent.codec import RecordError, decode, encode, from_json, to_json


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@dataclass(frozen=True)
class Start:
    name: str
    do: Literal["start"] = "start"


@dataclass(frozen=True)
class Stop:
    signal: int = 15
    do: Literal["stop"] = "stop"


@dataclass(frozen=True)
class Everything:
    text: str = ""
    count: int = 0
    share: float = 0.0
    flag: bool = False
    nothing: None = None
    state: Literal["running", "ended"] = "running"
    maybe: Optional[str] = None  # noqa: UP045
    modern: int | str | None = None
    either: Union[int, float, str] = 0  # noqa: UP007
    ids: Tuple[int, ...] = ()  # noqa: UP006
    builtin: tuple[str, ...] = ()
    pair: Tuple[str, int] = ("", 0)  # noqa: UP006
    names: List[str] = field(default_factory=list)  # noqa: UP006
    env: Mapping[str, str] = field(default_factory=dict)
    nested: Dict[str, Tuple[Point, ...]] = field(default_factory=dict)  # noqa: UP006
    point: Optional[Point] = None  # noqa: UP045
    request: Union[Start, Stop, None] = None  # noqa: UP007
    yaml: Any = None
    script: str = field(default="", metadata=codec.NOT_STORED)


@dataclass(frozen=True)
class Named:
    version: str


@dataclass(frozen=True)
class Unreadable:
    value: complex


TEXT = st.text(st.characters(exclude_categories=[]))
WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.builds(Point, st.integers(0, 2**40), WHOLE)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.builds(
    Everything,
    text=TEXT,
    count=WHOLE,
    share=NUMBER,
    flag=st.booleans(),
    state=st.sampled_from(["running", "ended"]),
    maybe=st.none() | TEXT,
    modern=st.none() | WHOLE | TEXT,
    either=WHOLE | NUMBER | TEXT,
    ids=st.lists(WHOLE, max_size=3).map(tuple),
    builtin=st.lists(TEXT, max_size=3).map(tuple),
    pair=st.tuples(TEXT, WHOLE),
    names=st.lists(TEXT, max_size=3),
    env=st.dictionaries(TEXT, TEXT, max_size=3),
    nested=st.dictionaries(TEXT, st.lists(POINTS, max_size=2).map(tuple), max_size=2),
    point=st.none() | POINTS,
    request=st.none() | st.builds(Start, TEXT) | st.builds(Stop, WHOLE),
    yaml=JSON,
)


@given(RECORDS)
def test_a_record_comes_back_equal_and_with_the_same_types(record: Everything) -> None:
    back = from_json(Everything, to_json(record), where="x")
    assert back == record
    assert repr(back) == repr(record), "1 and 1.0 and True are equal, and not the same"


@given(JSON)
def test_any_json_is_a_record_or_a_record_error(value: Any) -> None:
    try:
        decode(Everything, value, where="x.json")
    except RecordError as error:
        assert str(error).startswith("x.json: ")  # noqa: PT017


def test_only_the_outermost_record_has_the_version_and_first() -> None:
    assert list(encode(Everything(point=Point(1))))[:2] == ["version", "text"]
    assert encode(Everything(point=Point(1)))["point"] == {"x": 1, "y": 0}
    assert encode(Point(1, 2), versioned=False) == {"x": 1, "y": 2}


@given(RECORDS)
def test_what_is_at_its_default_can_be_left_out(record: Everything) -> None:
    assert from_json(Everything, to_json(record, compact=True), where="x") == record
    assert encode(Everything(request=Stop()), versioned=False, compact=True) == {"request": {"do": "stop"}}


def test_a_field_that_is_not_stored_is_neither_written_nor_read() -> None:
    assert "script" not in encode(Everything(script="secret"))
    assert decode(Everything, {"script": "x"}, where="x").script == ""


def test_a_missing_key_takes_the_default_and_an_unknown_one_is_ignored() -> None:
    assert decode(Point, {"x": 1, "z": [None]}, where="x") == Point(1, 0)


@pytest.mark.parametrize("version", ["1.0", "1.7"])
def test_another_minor_version_is_read(version: str) -> None:
    assert decode(Point, {"version": version, "x": 1}, where="x") == Point(1)


WRONG: dict[str, tuple[type, Any, str]] = {
    "another major version": (
        Point,
        {"version": "2.0", "x": 1},
        "f.json: version: this is format '2.0'; this program reads format 1.0",
    ),
    "a version that is no text": (
        Point,
        {"version": 1, "x": 1},
        "f.json: version: this is format 1; this program reads format 1.0",
    ),
    "a list": (Point, [1], "f.json: expected object, got list"),
    "null": (Point, None, "f.json: expected object, got null"),
    "a missing key": (Point, {}, "f.json: x: missing"),
    "a text among numbers": (Everything, {"ids": [1, 2, "3"]}, "f.json: ids[2]: expected int, got str"),
    "a bool for an int": (Point, {"x": True}, "f.json: x: expected int, got bool"),
    "a float for an int": (Point, {"x": 1.0}, "f.json: x: expected int, got float"),
    "a bool for a float": (Everything, {"share": True}, "f.json: share: expected float, got bool"),
    "an int for a bool": (Everything, {"flag": 1}, "f.json: flag: expected bool, got int"),
    "an int that is no float": (Everything, {"share": 10**400}, "f.json: share: the number is too large"),
    "an int that no database takes": (Everything, {"count": 2**63}, "f.json: count: the number is too large"),
    "a word that is none of the literals": (
        Everything,
        {"state": "gone"},
        "f.json: state: expected one of 'running', 'ended', got 'gone'",
    ),
    "a list for a literal": (
        Everything,
        {"state": ["running"]},
        "f.json: state: expected one of 'running', 'ended', got list",
    ),
    "none of the optional's": (Everything, {"maybe": 1}, "f.json: maybe: expected str, got int"),
    "none of a union's": (Everything, {"modern": 1.5}, "f.json: modern: expected int or str or null, got float"),
    "a text for a list": (Everything, {"names": "ab"}, "f.json: names: expected list, got str"),
    "a tuple of another length": (Everything, {"pair": ["a"]}, "f.json: pair: expected 2 items, got 1"),
    "an object's value": (Everything, {"env": {"A": None}}, "f.json: env['A']: expected str, got null"),
    "deep inside": (
        Everything,
        {"nested": {"a b": [{"x": 1}, {"x": ""}]}},
        "f.json: nested['a b'][1].x: expected int, got str",
    ),
    "inside of an optional record": (
        Everything,
        {"point": {"x": 1, "y": "2"}},
        "f.json: point.y: expected int, got str",
    ),
    "no variant": (
        Everything,
        {"request": {"do": "dance"}},
        "f.json: request.do: expected one of 'start', 'stop', got 'dance'",
    ),
    "inside of a variant": (
        Everything,
        {"request": {"do": "stop", "signal": "9"}},
        "f.json: request.signal: expected int, got str",
    ),
    "what a record itself refuses": (Everything, {"point": {"x": -1}}, "f.json: point: x is negative"),
    "a long hostile key": (
        Everything,
        {"env": {"\x1b[2J" * 40: 1}},
        "f.json: env['" + ("\\x1b[2J" * 40)[:58] + "…]: expected str, got int",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_the_file_the_key_and_what_is_wrong(case: str) -> None:
    kind, data, message = WRONG[case]
    with pytest.raises(RecordError) as caught:
        decode(kind, data, where="f.json")
    assert str(caught.value) == message


def test_an_error_does_not_repeat_a_value_that_may_be_secret() -> None:
    with pytest.raises(RecordError) as caught:
        decode(Everything, {"count": "hunter2", "env": {"TOKEN": "hunter2"}}, where="f.json")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", '{"x": NaN}', '{"x": Infinity}', "[" * 100_000, b"\xff", b'{"x": 1} {'], ids=range(7)
)
def test_what_is_no_json_is_a_record_error(text: str | bytes) -> None:
    with pytest.raises(RecordError, match=r"^f\.json: not JSON: "):
        from_json(Point, text, where="f.json")


MANY = ["[" + "[]," * 600_000, "[" + '{"a": 0},' * 600_000, '"' + "," * 1_000_001 + '"']


@pytest.mark.parametrize("text", MANY, ids=["lists", "objects", "a text"])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_text_that_would_take_much_more_memory_than_it_has_is_refused_unread(
    text: str, kind: Callable[[str], str | bytes]
) -> None:
    with pytest.raises(RecordError, match=r"^f\.json: more than 1000000 values$"):
        from_json(Point, kind(text), where="f.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: "a"}, {"a": ...}, b"x", {1}], ids=repr)
def test_what_json_has_not_is_not_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(Everything(yaml=value))


def test_an_int_may_stand_for_a_float_and_becomes_one() -> None:
    assert repr(decode(Everything, {"share": 1, "either": 1}, where="x").share) == "1.0"
    assert repr(decode(Everything, {"either": 1}, where="x").either) == "1"


def test_a_class_that_cannot_be_a_record_is_the_writers_error() -> None:
    with pytest.raises(TypeError, match="the codec's own"):
        decode(Named, {"version": "1.0"}, where="x")
    with pytest.raises(TypeError, match="complex"):
        decode(Unreadable, {"value": 1}, where="x")
    for none in (Point, {"x": 1}, None):
        with pytest.raises(TypeError, match="no record"):
            encode(none)
