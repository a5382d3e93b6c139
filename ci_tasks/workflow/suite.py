"""What a project's CI means beyond GitHub's syntax: what labels and rows are called, how a matrix entry names its test.

A feature gives a `Suite` for the projects that it knows. The defaults here are the generic one, which runs any
workflow: it knows no test files, and of an entry only how many GPUs it asks for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.workflow.model import CALLED, Workflow
from ci_tasks.workflow.runner import gpus_in_value
from ci_tasks.workflow.values import leaves, to_string

_PREFIX = "e2e-test-"
_GPUS = ("num_gpus", "gpus", "n_gpus", "ngpus", "num_gpu", "gpu_num", "gpu_count", "gpus_per_node")
_NUMBER = re.compile(r"[0-9]+$")


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
    """Whether a person who writes `name` means the job: by its label, or by its name as the workflow has it. Of a job
    that another calls, `CALLER/JOB` is enough."""
    return name.replace(CALLED, "/") in (label_of(job).replace(CALLED, "/"), job.replace(CALLED, "/"))


def name_of(label: str, combination: Mapping[str, Any], matrix_test: MatrixTest) -> str:
    """A row's name: its test file and arguments, else the matrix values behind the label, as GitHub shows them. One
    line that a terminal may have."""
    if matrix_test.test:
        label = matrix_test.test.rsplit("/", 1)[-1].removesuffix(".py").removeprefix("test_")
        inside = _slug(matrix_test.args)
    else:
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


def _slug(args: str) -> str:
    parts = (word.lstrip("-").replace("=", "-") for word in args.split())
    return "-".join(re.sub(r"[^A-Za-z0-9_.+-]", "_", word) for word in parts if word)


# -- suites -----------------------------------------------------------------------------------------------------------


def gpu_count(entry: Mapping[str, Any]) -> int | None:
    """The GPUs that a matrix entry says under one of their usual names, with `-` or `_`."""
    values = {str(key).lower().replace("-", "_"): value for key, value in entry.items()}
    return next((gpus_in_value(values[key]) for key in _GPUS if key in values), None)


def describe(combination: Mapping[str, Any]) -> MatrixTest:
    """The GPUs of a matrix entry, or of the one object in it."""
    values = list(combination.values())
    entry = values[0] if len(values) == 1 and isinstance(values[0], Mapping) else combination
    return MatrixTest(None, "", gpu_count(entry))


@dataclass(frozen=True)
class ChangedRule:
    """`pathspecs` are git's, in which `*` also crosses `/`; `statuses` the letters of --diff-filter, "" for all.
    `gpus_line` is a line that gives a file's GPUs, its number last; None if that is not known. A file without one gets
    `default_gpus`; if that is None and `fails_without` is set, it ends the script with an error."""

    pathspecs: tuple[str, ...]
    statuses: str = ""
    gpus_line: re.Pattern[str] | None = None
    default_gpus: int | None = None
    fails_without: bool = False

    def gpus_of(self, text: str) -> int | None:
        """The GPUs of a file, or None if the script gives it none."""
        number = self.number_in(text)
        return self.default_gpus if number is None else number

    def number_in(self, text: str) -> int | None:
        """The number of the file's first line with one. grep sees one line at a time."""
        matches = (self.gpus_line.search(line) for line in text.split("\n")) if self.gpus_line else ()
        numbers = (_NUMBER.search(match[0]) for match in matches if match)
        return next((int(number[0]) for number in numbers if number), None)


@dataclass(frozen=True)
class ChangedTests:
    """The label that runs the tests which a change touches, and CI's rule for them if a workflow has no job for it.

    `job` is what a workflow calls the job, `detect_label` the label of the one that finds its rows. `matrix` makes the
    job's matrix of path → text.
    """

    label: str
    job: str
    detect_label: str
    rule: ChangedRule
    matrix: Callable[[Mapping[str, str]], dict[str, Any]]


@dataclass(frozen=True)
class Suite:
    """The conventions of one project. `workflow` is its file in a checkout ("" if there is no usual one), which a
    template beside it may replace; `directory` is what people call its checkout. `lock_scripts` is the directory of the
    scripts that take the locks of GPUs. `packages` are the project's packages; a run records their origin. `probe_hook`
    names a module of the suite that the probe loads inside the job, "" for none: see docs/adding-a-suite.md.
    `overrides` is a hosts.yaml with what the project's steps need anywhere but on CI's machines; the user's own win."""

    name: str = "generic"
    workflow: str = ""
    directory: str = ""
    lock_scripts: str = "tests/ci"
    packages: tuple[str, ...] = ()
    probe_hook: str = ""
    matches: Callable[[Workflow], bool] = lambda workflow: True
    describe: Describe = describe
    changed: ChangedTests | None = None
    overrides: str = ""

    def is_changed(self, label: str) -> bool:
        """Whether the label means the tests that a change touches."""
        return self.changed is not None and label == self.changed.label


GENERIC = Suite()
