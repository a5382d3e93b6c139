"""GitHub's rules for a matrix, each with the reason above its rows."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ci_tasks.workflow.matrix import MatrixError, expand

# As YAML: a matrix, and its combinations.
CASES = [
    # one key is a list of runs
    ("{gpu: [1, 2]}", "[{gpu: 1}, {gpu: 2}]"),
    # the first key is the slowest
    ("{os: [a, b], py: [1, 2]}", "[{os: a, py: 1}, {os: a, py: 2}, {os: b, py: 1}, {os: b, py: 2}]"),
    # an empty list leaves nothing to run
    ("{os: [a], py: []}", "[]"),
    # no key leaves nothing to run
    ("{}", "[]"),
    # values may be objects
    ("{info: [{n: 1}, {n: 2}]}", "[{info: {n: 1}}, {info: {n: 2}}]"),
    # values may be lists and null
    ("{a: [[1, 2], null]}", "[{a: [1, 2]}, {a: null}]"),
    # exclude takes away what agrees with all it names
    ("{os: [a, b], py: [1, 2], exclude: [{os: a, py: 2}]}", "[{os: a, py: 1}, {os: b, py: 1}, {os: b, py: 2}]"),
    # exclude may name a part of the keys
    ("{os: [a, b], py: [1, 2], exclude: [{os: a}]}", "[{os: b, py: 1}, {os: b, py: 2}]"),
    # exclude may name a part of an object
    ("{v: [{node: 12, npm: 6}, {node: 14, npm: 6}], exclude: [{v: {node: 12}}]}", "[{v: {node: 14, npm: 6}}]"),
    # exclude compares as == does: case aside, numbers with their text
    ("{v: [Debug, '3.10', true], exclude: [{v: DEBUG}, {v: 3.1}]}", "[{v: true}]"),
    # true is 1, as in expressions
    ("{v: [true, 2], exclude: [{v: 1}]}", "[{v: 2}]"),
    # a list is compared by its items
    ("{v: [[1, 2], [3]], exclude: [{v: [1]}]}", "[{v: [3]}]"),
    # include comes after exclude and may bring back what was taken away
    ("{os: [a, b], exclude: [{os: a}], include: [{os: a}]}", "[{os: b}, {os: a}]"),
    # include alone is a list of runs
    ("{include: [{a: 1}, {b: 2}]}", "[{a: 1}, {b: 2}]"),
    # alone, its entries do not join
    ("{include: [{a: 1}, {c: 3}]}", "[{a: 1}, {c: 3}]"),
    # an entry without a key of the matrix joins every run
    ("{gpu: [1, 2], include: [{image: x}]}", "[{gpu: 1, image: x}, {gpu: 2, image: x}]"),
    # an entry joins the runs whose values it does not contradict
    ("{gpu: [1, 2], include: [{gpu: 2, image: x}]}", "[{gpu: 1}, {gpu: 2, image: x}]"),
    # an entry that contradicts every run is a run of its own
    ("{gpu: [1, 2], include: [{gpu: 8, image: x}]}", "[{gpu: 1}, {gpu: 2}, {gpu: 8, image: x}]"),
    # what an earlier entry added may be replaced, what the matrix said may not
    ("{gpu: [1, 2], include: [{image: x}, {gpu: 1, image: y}]}", "[{gpu: 1, image: y}, {gpu: 2, image: x}]"),
    # a run that an entry made is not joined by later entries
    ("{gpu: [1], include: [{gpu: 8}, {gpu: 8, image: x}]}", "[{gpu: 1}, {gpu: 8}, {gpu: 8, image: x}]"),
    # the value of the matrix stays as it is written there
    ("{mode: [Debug], include: [{mode: debug, flags: -g}]}", "[{mode: Debug, flags: -g}]"),
    # an entry may name a part of an object
    ("{v: [{n: 1, m: 2}], include: [{v: {n: 1}, x: 1}]}", "[{v: {n: 1, m: 2}, x: 1}]"),
    # All rules of include together. The documented example's six entries, in our words: adds to all; replaces what was
    # added; adds to one; adds to none and stands alone; stands alone although a lone one is like it.
    (
        "{model: [dense, moe], mode: [sync, async], include: [{gpus: 4}, {gpus: 8, mode: async}, "
        "{model: dense, size: small}, {model: vision}, {model: vision, mode: async}]}",
        "[{model: dense, mode: sync, gpus: 4, size: small}, {model: dense, mode: async, gpus: 8, size: small}, "
        "{model: moe, mode: sync, gpus: 4}, {model: moe, mode: async, gpus: 8}, {model: vision}, "
        "{model: vision, mode: async}]",
    ),
    # null stands for no entries
    ("{a: [1], include: null, exclude: null}", "[{a: 1}]"),
]


@pytest.mark.parametrize(("matrix", "combinations"), CASES)
def test_a_matrix_has_githubs_combinations(matrix: str, combinations: str) -> None:
    assert expand(yaml.safe_load(matrix)) == yaml.safe_load(combinations)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([1], "a matrix is a mapping, not list [1]"),
        ("word", "a matrix is a mapping, not str 'word'"),
        ({"a": "word"}, "matrix.a is a list, not str 'word'"),
        ({"a": None}, "matrix.a is a list, not null"),
        ({"a": [1], "include": {"b": 1}}, "matrix.include is a list of mappings"),
        ({"a": [1], "include": [1]}, "matrix.include is a list of mappings"),
        ({"a": [1], "include": [{}]}, "none of them empty"),
        ({"a": [1], "exclude": "a"}, "matrix.exclude is a list of mappings"),
        # GitHub refuses to exclude by a key that only `include` brings.
        ({"a": [1], "include": [{"b": 1}], "exclude": [{"b": 1}]}, "matrix.exclude names 'b', which is no key"),
        # A few short lists are enough for more than any memory holds.
        ({f"key{number}": [*range(10)] for number in range(100)}, "the matrix has more than 10000 combinations"),
    ],
)
def test_what_github_refuses_is_an_error(matrix: Any, message: str) -> None:
    with pytest.raises(MatrixError) as caught:
        expand(matrix)
    assert message in str(caught.value)
