"""Which packages a checkout has itself, so that one from elsewhere is noticed."""

from __future__ import annotations

import pytest

from ci_tasks.run.row_plans import own_packages, probe_rules
from ci_tasks.workflow.suite import Suite

SUITE = Suite(name="toy", packages=("toy", "toy_plugins", "other.core"))


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
