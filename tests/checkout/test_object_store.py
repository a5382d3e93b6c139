"""Objects that are written without git are those that git would write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_tasks.checkout.git import Git
from ci_tasks.checkout.object_store import commit_content, write_commit
from tests.checkout.repositories import git


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_a_commit_is_the_one_that_git_makes(tmp_path: Path, form: str) -> None:
    git(tmp_path, "init", "-q", f"--object-format={form}", "repo")
    store = Git(tmp_path / "repo/.git")
    tree = store.text("mktree")
    first = write_commit(tmp_path / "repo/.git", tree, None, "first")
    second = write_commit(tmp_path / "repo/.git", tree, first, "second")
    store.run("fsck", "--strict", first, second)
    assert store.text("log", "--format=%s", second) == "second\nfirst"
    assert first == store.text("commit-tree", "-m", "first", tree)
    assert second == store.text("commit-tree", "-m", "second", "-p", first, tree)
    assert commit_content(tree, first, "second")[0] == second


def test_a_commit_that_is_there_is_used_now(tmp_path: Path) -> None:
    """So nobody tidies it away before it is sent."""
    git(tmp_path, "init", "-q", "--bare", "store")
    tree = Git(tmp_path / "store").text("mktree")
    name = write_commit(tmp_path / "store", tree, None, "x")
    file = tmp_path / "store/objects" / name[:2] / name[2:]
    os.utime(file, (1, 1))
    assert write_commit(tmp_path / "store", tree, None, "x") == name
    assert file.stat().st_mtime > 1
