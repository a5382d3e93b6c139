"""Finding a Python among fakes that refuse surprises."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.hosts import python

OURS = (os.path.realpath(sys.executable), platform.python_version())
Fake = Callable[..., str]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes interpreters that say a version; PATH, HOME and PYENV_ROOT are the test's own."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYENV_ROOT", raising=False)

    def make(place: str, version: str = "", code: int = 0) -> str:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -c" ] || exit 99\necho {version} {path}\nexit {code}\n')
        path.chmod(0o755)
        return str(path)

    return make


def test_our_own_will_do_where_it_is_what_is_wanted(fake: Fake) -> None:
    version_spec = ".".join(platform.python_version().split(".")[:2])
    fake(f"bin/python{version_spec}", "9.9.9")
    assert python.find_python(version_spec) == (sys.executable, platform.python_version())


def test_another_version_on_path(fake: Fake) -> None:
    path = fake("bin/python3.6", "3.6.15")
    assert python.find_python("3.6") == (path, "3.6.15")
    assert python.find_python("3.6.15") == (path, "3.6.15")
    assert python.find_python("3.6.x") == (path, "3.6.15")


def test_python3_on_path_may_be_the_one(fake: Fake) -> None:
    path = fake("bin/python3", "3.6.1")
    assert python.find_python("3.6") == (path, "3.6.1")


def test_a_pyenv_shim_for_a_version_not_chosen_is_passed_over(fake: Fake) -> None:
    fake("bin/python3.6", "pyenv: python3.6: command not found", code=127)
    path = fake(".pyenv/versions/3.6.15/bin/python", "3.6.15")
    assert python.find_python("3.6") == (path, "3.6.15")


def test_the_newest_that_pyenv_keeps(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3.6.15 is newer than 3.6.9, though not as text."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "elsewhere"))
    for version in ("3.6.9", "3.6.15", "3.6.2"):
        fake(f"elsewhere/versions/{version}/bin/python", version)
    assert python.find_python("3.6")[1] == "3.6.15"
    assert python.find_python("3.6.9")[1] == "3.6.9"


def test_one_that_uv_keeps(fake: Fake) -> None:
    path = fake(".local/share/uv/python/cpython-3.6.15-linux-x86_64-gnu/bin/python3.6", "3.6.15")
    assert python.find_python("3.6") == (path, "3.6.15")


def test_a_program_that_lies_about_its_name_is_not_taken(fake: Fake) -> None:
    fake("bin/python3.6", "3.7.1")
    assert python.find_python("3.6") == OURS


@pytest.mark.parametrize(("version", "code"), [("", 0), ("3.6.1", 1)])
def test_an_interpreter_that_does_not_work_is_passed_over(fake: Fake, version: str, code: int) -> None:
    fake("bin/python3.6", version, code)
    assert python.find_python("3.6") == OURS


@pytest.mark.parametrize("version_spec", ["", "3.6", "3.6.15", "2.x", "pypy3.9"])
def test_where_there_is_none_it_is_our_own_and_the_caller_compares(fake: Fake, version_spec: str) -> None:
    assert python.find_python(version_spec) == OURS


@pytest.mark.parametrize("version_spec", ["3.x", "3", "3.*"])
def test_any_python_3_is_our_own(fake: Fake, version_spec: str) -> None:
    assert python.find_python(version_spec) == (sys.executable, platform.python_version())


def test_a_platform_py_of_the_current_directory_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` in a checkout executes nothing of it, and finds the Python that is there."""
    (tmp_path / "platform.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    answer = subprocess.run(python.find_python_command("3"), capture_output=True, text=True, check=True).stdout
    assert answer.split()[0] == OURS[1]
    assert not (tmp_path / "executed").exists()
