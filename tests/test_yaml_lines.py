"""YAML is read as GitHub reads it, and everything remembers its line."""

from __future__ import annotations

import math

import pytest

from ci_tasks.yaml_lines import Map, Text, YamlError, load

TYPES = [
    # YAML 1.1's extra booleans are words, as a key (`on:`) and as a value.
    ("on", "on"), ("yes", "yes"),
    # The core schema's own.
    ("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None),
    # Numbers: leading zeros are decimal, underscores and sexagesimals are text.
    ("10", 10), ("010", 10), ("1_000", "1_000"), ("3.10", 3.1), (".5", 0.5), ("1e3", 1000.0),
    # Dates and versions are text.
    ("2024-01-01", "2024-01-01"),
    # Quotes make text of anything.
    ("'10'", "10"), ('"true"', "true"), ("''", ""),
    # Python refuses to read integers of thousands of digits.
    ("9" * 5000, math.inf),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), TYPES)
def test_a_scalar_has_the_type_of_yaml_1_2(text: str, value: object) -> None:
    loaded = load(f"key: {text}\n")["key"]
    assert loaded == value
    assert isinstance(loaded, str) == isinstance(value, str)
    assert isinstance(loaded, bool) == isinstance(value, bool)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "\n\n"])
def test_a_document_without_content_is_none(text: str) -> None:
    assert load(text) is None


def test_a_mapping_knows_its_line_and_those_of_its_keys() -> None:
    loaded = load("# head\na:\n  b: 1\n\n  c: 2\n")
    assert (loaded.line, loaded.lines) == (2, {"a": 2})
    assert (loaded["a"].line, loaded["a"].lines) == (3, {"b": 3, "c": 5})


# The line is where the text itself begins; `source` is kept where a value has lost the file's line ends.
SCALARS = [
    ("k: word\n", 1, ()),
    ("k:\n  word\n", 2, ()),
    ("k: |\n  a\n  b\n", 2, ("  a", "  b")),
    ("k: | # comment\n  a\n  b\n", 2, ("  a", "  b")),
    ("k: |\n\n  a\n", 2, ("", "  a")),
    ("k: >-\n  a\n  b\n", 2, ("  a", "  b")),
    ('k: "a\n  b"\n', 1, ('k: "a', '  b"')),
    ("k: a\n  b\nl: c\n", 1, ("k: a", "  b")),
]


@pytest.mark.parametrize(("text", "line", "source"), SCALARS)
def test_a_scalar_knows_its_first_line_and_its_source(text: str, line: int, source: tuple[str, ...]) -> None:
    loaded = load(text)["k"]
    assert isinstance(loaded, Text)
    assert (loaded.line, loaded.source) == (line, source)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert list(load("on: 1\n1: 2\ntrue: 3\nnull: 4\nübung: 5\n'a b': 6\n")) == [
        *("on", "1", "true", "null", "übung", "a b")
    ]


def test_an_alias_is_the_value_of_its_anchor_once_more() -> None:
    loaded = load("a: &x {n: 1}\nb: *x\nc: &y word\nd: *y\n")
    assert loaded["b"] == {"n": 1}
    assert isinstance(loaded["b"], Map)
    assert loaded["d"] == "word"


ERRORS: list[tuple[str, int, str]] = [
    # Two keys of one name: the second one is blamed.
    ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a'"),
    ("a:\n  b: 1\n  'b': 2\n", 3, "duplicate key 'b'"),
    # What only looks like YAML.
    ("a: 1\n\tb: 2\n", 2, "tab character"),
    ("a: [1, 2\nb: 3\n", 2, "',' or ']'"),
    ("a: b: c\n", 1, "mapping values"),
    ("a: 'open\n", 2, "end of stream"),
    ("a: *nowhere\n", 1, "alias"),
    ("a: 1\n---\nb: 2\n", 2, "document"),
    ("a: 1\nb: \x02\n", 2, "control characters"),
    # What YAML allows and a workflow does not.
    ("? [a, b]\n: c\n", 1, "a key must be a scalar"),
    ("? {a: b}\n: c\n", 1, "a key must be a scalar"),
    ("x: &x {a: 1}\ny:\n  <<: *x\n", 3, "merge keys (`<<`) are not supported"),
    # What is meant to exhaust memory or the stack.
    ("a: &a [*a]\n", 1, "nest"),
    ("[" * 200 + "]" * 200, 1, "nest"),
    ("{" * 100_000, 1, "nest"),
    ("- " * 50_000, 1, "nest"),
    (
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        1,
        "counting aliases",
    ),
]


@pytest.mark.parametrize(("text", "line", "message"), ERRORS, ids=[message for _, _, message in ERRORS])
def test_invalid_yaml_is_an_error_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        load(text)
    assert message in caught.value.message
    assert (caught.value.line, caught.value.text) == (line, ([*text.splitlines(), ""])[line - 1])
