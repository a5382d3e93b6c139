"""What install steps made is as they left it when a row takes it over, or the row is told which files are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent.setup_manifest import VENV, WORKSPACE, SetupChanged, changed_files, check_setup, forget


@pytest.fixture
def setup(tmp_path: Path) -> Path:
    for name in ("venv/lib/module.py", "venv/lib/__pycache__/module.pyc", "workspace/test.py", "workspace/.git/index"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("honest\n")
    (tmp_path / "venv/lib/link").symlink_to("module.py")
    (tmp_path / "ready").write_text("PATH=venv/bin:$PATH\n")
    check_setup(str(tmp_path))
    return tmp_path


def _same_size_and_time(setup: Path) -> None:
    file = setup / "venv/lib/module.py"
    before = os.stat(file)
    file.write_text("forged\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _other_link(setup: Path) -> None:
    (setup / "venv/lib/link").unlink()
    (setup / "venv/lib/link").symlink_to("/tmp/forged.py")


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (_same_size_and_time, "venv/lib/module.py"),
    (lambda setup: (setup / "venv/lib/module.py").unlink(), "venv/lib/module.py"),
    (lambda setup: (setup / "venv/lib/module.py").chmod(0o777), "venv/lib/module.py"),
    (lambda setup: (setup / "venv/lib/sitecustomize.py").touch(), "venv/lib/sitecustomize.py"),
    (_other_link, "venv/lib/link"),
    (lambda setup: (setup / "workspace/test.py").write_text("forged\n"), "workspace/test.py"),
    (lambda setup: (setup / "ready").write_text("PATH=/tmp/forged:$PATH\n"), "ready"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_what_a_row_changed_is_named(setup: Path, change: Callable[[Path], object], named: str) -> None:
    change(setup)
    with pytest.raises(SetupChanged, match=f"an earlier row changed what the install steps made: {named};"):
        check_setup(str(setup))


def test_many_files_are_counted(setup: Path) -> None:
    for number in range(5):
        (setup / f"venv/new{number}").touch()
    with pytest.raises(SetupChanged, match="venv/new0, venv/new1, venv/new2 and 2 more;"):
        check_setup(str(setup))


def test_the_same_content_with_another_time_is_no_change(setup: Path) -> None:
    for name in ("venv/lib/module.py", "workspace/test.py"):
        (setup / name).write_text("honest\n")
    assert changed_files(str(setup), (VENV, WORKSPACE)) == []


def test_what_rows_write_beside_the_checkouts_files_is_no_change(setup: Path) -> None:
    (setup / "workspace/output.txt").write_text("step 1\n")
    (setup / "workspace/.git/index").write_text("refreshed\n")
    assert changed_files(str(setup), (VENV, WORKSPACE)) == []


@pytest.mark.parametrize("name", ["module.pyc", "other.pyc"])
def test_byte_code_that_a_row_cached_is_removed(setup: Path, name: str) -> None:
    (setup / "venv/lib/__pycache__" / name).write_text("forged\n")
    check_setup(str(setup))
    assert not (setup / "venv/lib/__pycache__" / name).exists()


def test_a_checkout_that_is_made_anew_is_recorded_anew(setup: Path) -> None:
    (setup / "workspace/test.py").write_text("another commit\n")
    forget(str(setup), WORKSPACE)
    check_setup(str(setup))
    (setup / "workspace/test.py").write_text("forged\n")
    with pytest.raises(SetupChanged):
        check_setup(str(setup))
