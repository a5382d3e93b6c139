"""Which files define tests, which run none when Python runs them, which start Ray; and packages of the checkout."""

from __future__ import annotations

import pytest

from ci_tasks.planning.checkout_files import defines_tests, only_defines_tests, own_packages, probe_rules, starts_ray
from ci_tasks.workflow.suite import Suite
from tests.parts.cases import cases

CASES = cases("planning/data/tested-files.yaml")
SUITE = Suite(name="toy", packages=("toy", "toy_plugins", "other.core"))
KINDS = {(False, False): "script", (True, False): "reaches", (True, True): "unreached"}


@pytest.mark.parametrize(("source", "kind"), CASES["a file defines tests and python reaches them or not"])
def test_a_file_defines_tests_and_python_reaches_them_or_not(source: str, kind: str) -> None:
    assert KINDS[defines_tests(source), only_defines_tests(source)] == kind


@pytest.mark.parametrize(("files", "starts"), CASES["who starts ray"])
def test_who_starts_ray(files: dict[str, str], starts: bool) -> None:
    assert starts_ray("tests/t.py", files.get) is starts


@pytest.mark.parametrize(
    ("files", "own"),
    [
        (["toy/__init__.py", "README.md"], ["toy"]),
        (["src/toy_plugins/__init__.py", "python/other/core/__init__.py"], ["toy_plugins", "other.core"]),
        (["my_lib/__init__.py"], ["my_lib"]),
        (["toy_repository/__init__.py"], ["toy_repository"]),
        (["toy.py"], []),
    ],
)
def test_the_packages_of_a_checkout(files: list[str], own: list[str]) -> None:
    content = {**dict.fromkeys(files, ""), "pyproject.toml": '[project]\nname = "My-Lib"\n'}
    assert list(own_packages(SUITE, "owner/toy-repository", content.get)) == own


def test_own_packages_are_watched() -> None:
    rules = probe_rules(SUITE, ("my_lib", "toy"))
    assert (rules.packages, rules.own) == (("toy", "toy_plugins", "other.core", "my_lib"), ("my_lib", "toy"))
