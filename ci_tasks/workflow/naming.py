"""What labels and rows are called. Needs no expressions, so that listing sessions stays quick."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ci_tasks.errors import printable

_PREFIX = "e2e-test-"


class MatrixTest(NamedTuple):
    """What a suite's convention reads from a matrix entry."""

    test: str | None
    args: str
    gpus: int | None


Describe = Callable[[Mapping[str, Any]], MatrixTest]


def label_of(job: str) -> str:
    """A job's name less its prefix: what a person types."""
    return job.removeprefix(_PREFIX)


def matches_job(name: str, job: str) -> bool:
    """Whether a person who writes `name` means the job: by its label, or by its name as the workflow has it."""
    return name in (label_of(job), job)


def name_of(label: str, combination: Mapping[str, Any], matrix_test: MatrixTest) -> str:
    """A row's name: its test file and arguments, else the matrix values behind the label, as GitHub shows them. One
    line that a terminal may have."""
    if matrix_test.test:
        label = matrix_test.test.rsplit("/", 1)[-1].removesuffix(".py").removeprefix("test_")
        inside = _slug(matrix_test.args)
    else:
        from ci_tasks.workflow.values import to_string

        inside = "-".join(text for text in map(to_string, leaves(combination)) if text)
    return printable((f"{label}[{inside}]" if inside else label).replace("\n", " ").replace("\t", " "))


def make_unique(names: list[str]) -> list[str]:
    """The second of one name becomes `name#2`, so that a name picks one row."""
    counts: dict[str, int] = {}
    taken = set(names)
    unique_names = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique = name
        while counts[name] > 1 and (unique := f"{name}#{counts[name]}") in taken:
            counts[name] += 1
        taken.add(unique)
        unique_names.append(unique)
    return unique_names


def plain_names(label: str, matrix: Any, describe: Describe) -> list[str] | None:
    """The row names of a matrix that is lists of plain values; None for one that has to be evaluated to be known."""
    if matrix is None:
        return [label]
    values = matrix.values() if isinstance(matrix, Mapping) else ()
    if not values or {"include", "exclude"} & matrix.keys() or not all(isinstance(value, list) for value in values):
        return None
    if any(isinstance(leaf, str) and "${{" in leaf for leaf in leaves(matrix)):
        return None
    combinations = [dict(zip(matrix, values, strict=True)) for values in itertools.product(*values)]
    return make_unique([name_of(label, combination, describe(combination)) for combination in combinations])


def leaves(value: Any) -> list[Any]:
    inside = list(value.values()) if isinstance(value, Mapping) else value
    return [leaf for item in inside for leaf in leaves(item)] if isinstance(inside, list) else [value]


def _slug(args: str) -> str:
    parts = (word.lstrip("-").replace("=", "-") for word in args.split())
    return "-".join(re.sub(r"[^A-Za-z0-9_.+-]", "_", word) for word in parts if word)
