"""A `strategy.matrix` → its combinations, in GitHub's order.

The rules are those of GitHub's "Running variations of jobs in a workflow": the product of the lists, first key slowest;
`exclude` takes away combinations that agree with every value it names; each `include` entry is added to every
combination whose original values it does not contradict, and becomes a combination of its own where there is none.
Values agree as `==` does in expressions, mappings and lists by the values inside that are named (`MatrixFilter` in
actions/runner's C# source).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from ci_tasks.workflow.values import lookup, loose_equal

_MAX_COMBINATIONS = 10_000  # before `exclude`; GitHub itself runs 256


class MatrixError(Exception):
    """A matrix that GitHub would refuse."""


def expand(matrix: Any) -> list[dict[str, Any]]:
    """The combinations of an evaluated matrix. Raises MatrixError."""
    if matrix is None:
        return [{}]
    if not isinstance(matrix, Mapping):
        raise MatrixError(f"a matrix is a mapping, not {_kind(matrix)}")
    axes = {key: _axis(key, values) for key, values in matrix.items() if key not in ("include", "exclude")}
    if math.prod(map(len, axes.values())) > _MAX_COMBINATIONS:  # counted before they are made
        raise MatrixError(f"the matrix has more than {_MAX_COMBINATIONS} combinations; GitHub runs at most 256")
    original = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    excluded = _entries(matrix, "exclude")
    for key in (key for entry in excluded for key in entry):
        if key not in axes:
            raise MatrixError(f"matrix.exclude names {key!r}, which is no key of the matrix")
    kept = [combination for combination in original if not any(_agrees(entry, combination) for entry in excluded)]
    return _include(kept, _entries(matrix, "include"), set(axes))


def _include(original: list[dict[str, Any]], entries: list[dict[str, Any]], axes: set[str]) -> list[dict[str, Any]]:
    combinations = [dict(combination) for combination in original]
    added: list[dict[str, Any]] = []
    for entry in entries:
        named = {key: value for key, value in entry.items() if key in axes}
        extra = {key: value for key, value in entry.items() if key not in axes}
        met = [candidate for candidate, before in zip(combinations, original, strict=True) if _agrees(named, before)]
        for combination in met:
            combination.update(extra)
        if not met:
            added.append({**named, **extra})
    return combinations + added


def _agrees(expected: Any, value: Any) -> bool:
    if isinstance(expected, Mapping):
        inside = value if isinstance(value, Mapping) else {}
        return all(_agrees(item, next(iter(lookup(inside, key)), None)) for key, item in expected.items())
    if isinstance(expected, list):
        items = value if isinstance(value, list) else []
        return all(_agrees(item, items[at] if at < len(items) else None) for at, item in enumerate(expected))
    return loose_equal(expected, value)


def _axis(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise MatrixError(f"matrix.{key} is a list, not {_kind(values)}")
    return values


def _entries(matrix: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = [] if matrix.get(key) is None else matrix[key]
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) and entry for entry in entries):
        raise MatrixError(f"matrix.{key} is a list of mappings, none of them empty")
    return [dict(entry) for entry in entries]


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"
