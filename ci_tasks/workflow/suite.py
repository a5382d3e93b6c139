"""What a project's CI means beyond GitHub's syntax: how a matrix entry names its test, what its workflow is called.

A feature gives a `Suite` for the projects that it knows. The defaults here are the generic one, which runs any
workflow: it knows no test files, and of an entry only how many GPUs it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.naming import Describe, MatrixTest

_GPUS = ("num_gpus", "gpus")


def gpu_count(value: Any) -> int | None:
    """A number of GPUs; None for what is no number."""
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def describe(combination: Mapping[str, Any]) -> MatrixTest:
    """The GPUs of a matrix entry, or of the one object in it."""
    values = list(combination.values())
    entry = values[0] if len(values) == 1 and isinstance(values[0], Mapping) else combination
    return MatrixTest(None, "", gpu_count(next((entry[key] for key in _GPUS if key in entry), None)))


@dataclass(frozen=True)
class ChangedTests:
    """The label that runs the tests which a change touches, and CI's rule for them where a workflow has no job for it.

    `job` and `detect_job` are what a workflow calls the job and the one that finds its rows. `patterns` are git's
    pathspecs, in which `*` also crosses `/`; `matrix` makes the job's matrix of path → text.
    """

    label: str
    job: str
    detect_label: str
    patterns: tuple[str, ...]
    matrix: Callable[[Mapping[str, str]], dict[str, Any]]


@dataclass(frozen=True)
class Suite:
    """The conventions of one project. `workflow` is its file in a checkout ("" where there is no usual one), which a
    template beside it may replace; `directory` is what people call its checkout. `lock_scripts` is the directory of the
    scripts that take the locks of GPUs."""

    name: str = "generic"
    workflow: str = ""
    directory: str = ""
    lock_scripts: str = "tests/ci"
    matches: Callable[[Workflow], bool] = lambda workflow: True
    describe: Describe = describe
    changed: ChangedTests | None = None

    def is_changed(self, label: str) -> bool:
        """Whether the label means the tests that a change touches."""
        return self.changed is not None and label == self.changed.label


GENERIC = Suite()
