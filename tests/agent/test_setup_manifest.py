"""What install steps made is as they left it when a row takes it over, or the row is told which files are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent import setup_manifest
from ci_tasks.agent.setup_manifest import (
    PREFIX,
    VENV,
    WORKSPACE,
    SetupChanged,
    changed_files,
    check_setup,
    file_hashes,
    write_manifest,
)


@pytest.fixture
def setup(tmp_path: Path) -> Path:
    for name in ("venv/lib/module.py", "venv/lib/__pycache__/module.pyc", "workspace/test.py", "workspace/.git/index"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("honest\n")
    (tmp_path / "venv/lib/link").symlink_to("module.py")
    (tmp_path / "ready").write_text("PATH=venv/bin:$PATH\n")
    (tmp_path / "store/prefix").mkdir(parents=True)
    (tmp_path / "environment").symlink_to("store")
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


def _other_environment(setup: Path) -> None:
    (setup / "environment").unlink()
    (setup / "environment").symlink_to(setup / "venv")


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (_same_size_and_time, "venv/lib/module.py"),
    (lambda setup: (setup / "venv/lib/module.py").unlink(), "venv/lib/module.py"),
    (lambda setup: (setup / "venv/lib/module.py").chmod(0o777), "venv/lib/module.py"),
    (lambda setup: (setup / "venv/lib/sitecustomize.py").touch(), "venv/lib/sitecustomize.py"),
    (_other_link, "venv/lib/link"),
    (lambda setup: (setup / "workspace/test.py").write_text("forged\n"), "workspace/test.py"),
    (_other_environment, "environment"),
    (lambda setup: (setup / "environment").unlink(), "environment"),
    (lambda setup: (setup / "ready").write_text("PATH=/tmp/forged:$PATH\n"), "ready"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_what_a_row_changed_is_named(setup: Path, change: Callable[[Path], object], named: str) -> None:
    change(setup)
    with pytest.raises(SetupChanged, match=rf"not as they left it: 1 file differs \({named}\);"):
        check_setup(str(setup))


def test_many_files_are_counted(setup: Path) -> None:
    for number in range(5):
        (setup / f"venv/new{number}").touch()
    with pytest.raises(SetupChanged, match=r"5 files differ \(venv/new0, venv/new1, venv/new2 and 2 more\);"):
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


def test_a_file_that_was_read_again_and_is_the_same_need_not_be_read_the_next_time(
    setup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_manifest, "CLOCK_SECONDS", 0)
    (setup / "venv/lib/module.py").write_text("honest\n")
    time.sleep(0.02)
    check_setup(str(setup))
    monkeypatch.setattr(setup_manifest, "_digest", lambda path: pytest.fail(f"read again: {path!r}"))
    check_setup(str(setup))


def test_a_file_of_a_moment_ago_is_read_again_since_its_time_may_not_change_with_the_next_write(setup: Path) -> None:
    for _ in range(2):
        check_setup(str(setup))
        assert (setup / "venv.manifest").read_bytes().startswith(b"\t"), "no state is recorded"


def test_the_environment_below_the_venv_is_checked_too(setup: Path) -> None:
    below = setup / "store"
    (below / "prefix.manifest").unlink()
    (below / "prefix/package.py").write_text("honest\n")
    (digest,) = file_hashes(str(below / "prefix"), ["package.py"]).values()
    write_manifest(str(below), PREFIX, {b"/package.py": digest})
    check_setup(str(setup))
    (below / "prefix/package.py").write_text("forged\n")
    with pytest.raises(SetupChanged, match=r"prefix/package\.py"):
        check_setup(str(setup))
