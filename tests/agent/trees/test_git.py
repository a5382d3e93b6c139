"""git's complaints on a host: whether the disk is full, something is missing, or it is something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.trees import git as hostgit
from ci_tasks.agent.trees.git import Damaged, DiskFull, HostGit, MissingBase, StoreError, error_of

FULL = "the host's disk is full"

MESSAGES = [
    ("fatal: write error: No space left on device", DiskFull, FULL),
    ("error: file write error. Out of diskspace\nfatal: index-pack failed", DiskFull, FULL),
    ("fatal: write error: Disk quota exceeded", DiskFull, FULL),
    ("error: unable to write file 'a b'", DiskFull, FULL),
    ("fatal: unable to write new index file", DiskFull, FULL),
    ("error: unable to write file a: Permission denied", StoreError, "Permission denied"),
    ("fatal: pack has 2 unresolved deltas", MissingBase, "unresolved deltas"),
    ("error: unable to read sha1 file of a (0123)", Damaged, "unable to read"),
    ("fatal: unable to read tree 0123", Damaged, "unable to read tree"),
    ("fatal: reference is not a tree: 0123", Damaged, "not a tree"),
    ("error: inflate: data stream error (incorrect header check)", Damaged, "inflate"),
    ("fatal: early EOF", StoreError, "early EOF"),
    ("error: invalid path '.git/x'", StoreError, "invalid path"),
    ("fatal: unknown repository extension found:\n\tobjectformat", StoreError, "objectformat"),
    ("", StoreError, "exit code 128"),
]


@pytest.mark.parametrize(("message", "kind", "shown"), MESSAGES)
def test_an_error_of_git_gets_its_class(tmp_path: Path, message: str, kind: type[StoreError], shown: str) -> None:
    error = error_of("checkout", message, 128, str(tmp_path))
    assert type(error) is kind
    assert shown in str(error)
    assert str(tmp_path) in str(error)


def test_whatever_git_says_a_disk_without_room_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostgit, "free_bytes", lambda _: 4096)
    error = error_of("index-pack", "fatal: early EOF", 128, str(tmp_path))
    assert FULL in str(error)
    assert type(error) is DiskFull


def test_a_repository_is_the_named_one_and_none_around_it(tmp_path: Path) -> None:
    HostGit(str(tmp_path)).run("init", "-q", "--bare")
    (tmp_path / "inner").mkdir()
    with pytest.raises(MissingBase, match="not a git repository"):
        HostGit(str(tmp_path / "inner")).run("rev-parse", "--git-dir")
