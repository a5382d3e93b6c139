"""Which tests of the long files run at every push: a sample of each in samples.yaml, which the commit changes, and what
is marked `smoke`. All of them run in `nox -s nightly`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

SEED = os.environ.get("CI_TASKS_TEST_SEED", "0")  # `.ci/run` sets it to the commit
SAMPLES: dict[str, int] = yaml.safe_load(Path(__file__).with_name("samples.yaml").read_text(encoding="utf-8"))


T = TypeVar("T")


def drawn(cases: Sequence[T], number: int) -> list[T]:
    """So many of a test's cases, in `nox -s nightly` all."""
    if os.environ.get("CI_TASKS_TEST_PROFILE") == "nightly":
        return list(cases)
    return random.Random(SEED).sample(cases, min(number, len(cases)))


def mark_nightly(root: os.PathLike[str], items: Iterable[pytest.Item]) -> None:
    """Mark the tests of these files but the samples and the smoke tests. Each worker draws the same ones."""
    files: dict[str, list[pytest.Item]] = {name: [] for name in SAMPLES}
    for item in items:
        name = os.path.relpath(item.path, os.path.join(root, "tests"))
        if name in files and not item.get_closest_marker("smoke"):
            files[name].append(item)
    for name, tests in files.items():
        kept = random.Random(f"{SEED} {name}").sample(tests, min(SAMPLES[name], len(tests)))
        for item in tests:
            if item not in kept:
                item.add_marker(pytest.mark.nightly)
