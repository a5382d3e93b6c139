"""What a client remembers of its hosts, and how its store stays small."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ci_tasks.agent.files import file_lock
from ci_tasks.checkout.delivery import prune_store
from ci_tasks.checkout.snapshot import take_snapshot
from tests.checkout.repositories import git

DAY = 86400.0


@pytest.fixture
def store(repo: Path, tmp_path: Path) -> Path:
    take_snapshot(repo, tmp_path / "store")
    return tmp_path / "store"


def tree(repo: Path, store: Path, text: str) -> str:
    (repo / "kept.txt").write_text(text)
    return take_snapshot(repo, store).checkout.tree


def present(store: Path, *ids: str) -> list[bool]:
    listed = git(store, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    return [name in listed for name in ids]


def test_what_was_recorded_long_ago_goes_and_comes_back_where_it_is_needed(repo: Path, store: Path) -> None:
    old = tree(repo, store, "kept here\n")
    for path in store.rglob("*"):
        os.utime(path, (time.time() - 91 * DAY,) * 2)
    young = tree(repo, store, "young\n")
    prune_store(store)
    assert present(store, old, young) == [False, True]
    assert tree(repo, store, "kept here\n") == old and present(store, old) == [True]


def test_a_store_that_was_not_used_for_long_is_removed_unless_it_is_in_use(repo: Path, store: Path) -> None:
    others = [store.with_name(name) for name in ("old", "young", "locked")]
    for other in others:
        take_snapshot(repo, other)
    for path in (others[0], others[2]):
        os.utime(path, (time.time() - 15 * DAY,) * 2)
    with file_lock(str(others[2] / "lock"), exclusive=True, timeout=0):
        for other in others:
            prune_store(other)
    assert [path.exists() for path in others] == [False, True, True]
    os.utime(others[1], (time.time() - 15 * DAY,) * 2)
    take_snapshot(repo, others[1])
    prune_store(others[1])
    assert others[1].exists()
