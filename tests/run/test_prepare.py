"""What of a checkout is looked at before its rows are planned: large untracked files, and packages of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_tasks.checkout import snapshot as untracked
from ci_tasks.run.prepare import announce_large_files
from ci_tasks.run.row_plans import own_packages, probe_rules
from ci_tasks.workflow.suite import Suite
from tests.parts.git import repository

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


def test_large_files_that_travel_are_named_with_what_leaves_them_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(untracked, "LARGE_BYTES", 1000)
    repository(tmp_path)
    for number in range(7):
        file = tmp_path / f"weights-{number}\x1b.bin"
        file.touch()
        os.truncate(file, 300_000_000 if number == 6 else 2_000_000)
    announce_large_files(tmp_path)
    out = capsys.readouterr().out
    assert "312 MB in all: weights-6�.bin" in out and "and 2 more" in out
    assert "add them to .gitignore" in out
