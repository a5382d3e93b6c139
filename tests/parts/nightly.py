"""Which cases run at every push and which nightly: of a long list of cases a sample, drawn by a seed that the commit
changes. `nox -s nightly` runs all of them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest

SEED = os.environ.get("CI_TASKS_TEST_SEED", "0")  # `.ci/run` sets it to the commit


def sample(cases: Iterable[Any], size: int) -> list[Any]:
    """Arguments for `parametrize`: all cases in their order, all but `size` of them marked as nightly. Each case is a
    value, a tuple of values, or a `pytest.param`."""
    listed = list(cases)
    drawn = set(random.Random(f"{SEED} {len(listed)}").sample(range(len(listed)), min(size, len(listed))))
    return [case if at in drawn else _nightly(case) for at, case in enumerate(listed)]


def _nightly(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.nightly], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
