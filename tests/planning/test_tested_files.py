"""Which files define tests, which of them run none when Python runs them, and which start Ray."""

from __future__ import annotations

import pytest

from ci_tasks.planning.tested_files import defines_tests, only_defines_tests, starts_ray
from tests.parts.cases import cases

CASES = cases("planning/data/tested-files.yaml")
KINDS = {(False, False): "script", (True, False): "reaches", (True, True): "unreached"}


@pytest.mark.parametrize(("source", "kind"), CASES["a file defines tests and python reaches them or not"])
def test_a_file_defines_tests_and_python_reaches_them_or_not(source: str, kind: str) -> None:
    assert KINDS[defines_tests(source), only_defines_tests(source)] == kind


@pytest.mark.parametrize(("files", "starts"), CASES["who starts ray"])
def test_who_starts_ray(files: dict[str, str], starts: bool) -> None:
    assert starts_ray("tests/t.py", files.get) is starts
