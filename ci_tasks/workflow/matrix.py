"""A `strategy.matrix` → its combinations, in GitHub's order.

The rules are those of GitHub's "Running variations of jobs in a workflow": the product of the lists, first key slowest;
`exclude` takes away combinations that agree with every key it names; each `include` entry is added to every combination
whose original values it does not contradict, and becomes a combination of its own where there is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any


class MatrixError(Exception):
    """A matrix that GitHub would refuse."""


def expand(matrix: Any) -> list[dict[str, Any]]:
    """The combinations of an evaluated matrix. Raises MatrixError."""
    if matrix is None:
        return [{}]
    if not isinstance(matrix, Mapping):
        raise MatrixError(f"a matrix is a mapping, not {_kind(matrix)}")
    axes = {key: _axis(key, values) for key, values in matrix.items() if key not in ("include", "exclude")}
    original = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    excluded = _entries(matrix, "exclude")
    kept = [combination for combination in original if not any(_agrees(entry, combination) for entry in excluded)]
    return _include(kept, _entries(matrix, "include"))


def _include(original: list[dict[str, Any]], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    combinations = [dict(combination) for combination in original]
    added: list[dict[str, Any]] = []
    for entry in entries:
        hosts = [
            combination
            for combination, before in zip(combinations, original, strict=True)
            if all(before[key] == value for key, value in entry.items() if key in before)
        ]
        for combination in hosts:
            combination.update(entry)
        if not hosts:
            added.append(dict(entry))
    return combinations + added


def _agrees(entry: Mapping[str, Any], combination: Mapping[str, Any]) -> bool:
    return all(key in combination and combination[key] == value for key, value in entry.items())


def _axis(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise MatrixError(f"matrix.{key} is a list, not {_kind(values)}")
    return values


def _entries(matrix: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = matrix.get(key) or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise MatrixError(f"matrix.{key} is a list of mappings")
    return [dict(entry) for entry in entries]


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r}"
