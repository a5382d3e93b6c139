"""Which untracked files are so large that a person should know before they travel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ci_tasks.checkout import untracked


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(untracked, "LARGE_BYTES", 1000)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_untracked_files_from_the_limit_on_are_named_the_largest_first(checkout: Path) -> None:
    for name, size in {"a": 999, "b": 1000, "data/new\nline": 5000}.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_bytes(bytes(size))
    assert untracked.large_untracked_files(checkout) == [("data/new\nline", 5000), ("b", 1000)]


def test_ignored_and_tracked_files_and_targets_of_links_are_not(checkout: Path, tmp_path: Path) -> None:
    for name in ("ignored", "tracked"):
        (checkout / name).write_bytes(bytes(2000))
    (checkout / ".gitignore").write_text("ignored\n")
    os.symlink("ignored", checkout / "link")
    subprocess.run(["git", "-C", str(checkout), "add", "tracked"], check=True)
    assert untracked.large_untracked_files(checkout) == []


def test_a_directory_without_git_has_none(tmp_path: Path) -> None:
    assert untracked.large_untracked_files(tmp_path) == []
