"""The codec: what a record's annotations accept, what every refusal says, and that nothing changes on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
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
    names: List[str] = field(default_factory=list)  # noqa: UP006
    env: Mapping[str, str] = field(default_factory=dict)
    nested: Dict[str, Tuple[Point, ...]] = field(default_factory=dict)  # noqa: UP006
    point: Optional[Point] = None  # noqa: UP045
    yaml: Any = None
    script: str = field(default="", metadata=codec.NOT_STORED)


@dataclass(frozen=True)
class Unreadable:
    value: complex


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FULL = Everything(
    text="/data/\udcff",
    share=1.0,
    flag=True,
    maybe="x",
    modern=7,
    either=1,
    ids=(1, 2),
    names=["b"],
    env={"A": "1"},
    nested={"c": (Point(1), Point(2, 3))},
    point=Point(4),
    yaml={"d": [1, None, 1.5]},
)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("record", [FULL, Everything(), Everything(either=1.0)])
def test_a_record_comes_back_equal_and_with_the_same_types(record: Everything, compact: bool) -> None:
    text = to_json(record, compact=compact).encode("utf-8", "backslashreplace")
    assert repr(from_json(Everything, text, where="x")) == repr(record), "1, 1.0 and True are equal, and not the same"


@given(st.dictionaries(st.sampled_from([field.name for field in fields(Everything)]), JSON) | JSON)
def test_any_json_is_a_record_or_a_record_error(value: Any) -> None:
    try:
        decode(Everything, value, where="x.json")
    except RecordError as error:
        assert str(error).startswith("x.json: ")  # noqa: PT017


def test_only_the_outermost_record_has_the_version_and_first() -> None:
    assert list(encode(Everything(point=Point(1))))[:2] == ["version", "text"]
    assert encode(Everything(point=Point(1)))["point"] == {"x": 1, "y": 0}
    assert encode(Point(1, 2), versioned=False) == {"x": 1, "y": 2}


def test_what_is_at_its_default_can_be_left_out() -> None:
    assert encode(Everything(point=Point(1)), versioned=False, compact=True) == {"point": {"x": 1}}


def test_a_field_that_is_not_stored_is_neither_written_nor_read() -> None:
    assert "script" not in encode(Everything(script="secret"))
    assert decode(Everything, {"script": "x"}, where="x").script == ""


@pytest.mark.parametrize("version", ["1.0", "1.7"])
def test_another_minor_version_is_read(version: str) -> None:
    assert decode(Point, {"version": version, "x": 1}, where="x") == Point(1)


VERSION = "version: this is format %s; this program reads format 1.0"
STATES = "state: expected one of 'running', 'ended', got"
WRONG: list[tuple[type, Any, str]] = [
    (Point, {"version": "2.0", "x": 1}, VERSION % "'2.0'"),
    (Point, {"version": 1, "x": 1}, VERSION % "1"),
    (Point, [1], "expected object, got list"),
    (Point, None, "expected object, got null"),
    (Point, {}, "x: missing"),
    (Everything, {"ids": [1, 2, "3"]}, "ids[2]: expected int, got str"),
    (Point, {"x": True}, "x: expected int, got bool"),
    (Point, {"x": 1.0}, "x: expected int, got float"),
    (Everything, {"share": True}, "share: expected float, got bool"),
    (Everything, {"flag": 1}, "flag: expected bool, got int"),
    (Everything, {"share": 10**400}, "share: the number is too large"),
    (Everything, {"count": 2**63}, "count: the number is too large"),
    (Everything, {"state": "gone"}, f"{STATES} 'gone'"),
    (Everything, {"state": ["running"]}, f"{STATES} list"),
    (Everything, {"maybe": 1}, "maybe: expected str, got int"),
    (Everything, {"modern": 1.5}, "modern: expected int or str or null, got float"),
    (Everything, {"names": "ab"}, "names: expected list, got str"),
    (Everything, {"env": {"A": None}}, "env['A']: expected str, got null"),
    (Everything, {"nested": {"a b": [{"x": 1}, {"x": ""}]}}, "nested['a b'][1].x: expected int, got str"),
    (Everything, {"point": {"x": 1, "y": "2"}}, "point.y: expected int, got str"),
    (Everything, {"point": {"x": -1}}, "point: x is negative"),
    (Everything, {"env": {"\x1b[2J" * 40: 1}}, f"env['{(chr(92) + 'x1b[2J') * 40:.59}]: expected str, got int"),
]


@pytest.mark.parametrize(("kind", "data", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_an_error_names_the_file_the_key_and_what_is_wrong(kind: type, data: Any, message: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode(kind, data, where="f.json")
    assert str(caught.value) == f"f.json: {message}"


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


def test_a_class_that_cannot_be_a_record_is_the_writers_error() -> None:
    with pytest.raises(TypeError, match="complex"):
        decode(Unreadable, {"value": 1}, where="x")
    for none in (Point, {"x": 1}, None):
        with pytest.raises(TypeError, match="no record"):
            encode(none)
