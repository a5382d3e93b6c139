"""Only a directory that nobody else can look into has sockets of kept connections."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks.hosts import mux


@pytest.fixture
def short() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's; pytest's own may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def test_it_is_below_a_private_runtime_directory(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    assert mux.directory() == short / "ci-tasks"
    assert (short / "ci-tasks").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["open to others", "missing", "a link", "a long path", "its own is open to others"])
def test_without_one_there_is_none(what: str, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short / "run"
    if what == "a link":
        (short / "there").mkdir(mode=0o700)
        runtime.symlink_to(short / "there")
    elif what == "a long path":
        runtime = short / ("x" * 100)
        runtime.mkdir(mode=0o700)
    elif what != "missing":
        runtime.mkdir(mode=0o755 if what == "open to others" else 0o700)
    if what == "its own is open to others":
        (runtime / "ci-tasks").mkdir()
        (runtime / "ci-tasks").chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert mux.directory() is None


def test_without_a_runtime_directory_it_is_ours_beside_temporary_files(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(short))
    assert mux.directory() == short / f"ci-tasks-{os.geteuid()}"
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    (short / "ci-tasks-12345").mkdir(mode=0o700)  # another user was quicker
    assert mux.directory() is None
