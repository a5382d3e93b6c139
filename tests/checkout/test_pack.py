"""What a client remembers of its hosts, and how its store stays small."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ci_tasks.agent.files import file_lock
from ci_tasks.checkout.delivery import prune_store, record_sent_tree, sent_trees
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


def test_the_last_trees_of_every_host_are_remembered_newest_first(repo: Path, store: Path) -> None:
    trees = [tree(repo, store, f"{number}\n") for number in range(6)]
    for name in trees:
        record_sent_tree(store, "h100a", name)
    for name in trees[:2]:
        record_sent_tree(store, "h100b\n/../x", name)
    assert sent_trees(store, "h100a") == trees[:2:-1]
    assert sent_trees(store, "h100b\n/../x") == [trees[1], trees[0]]
    record_sent_tree(store, "h100b\n/../x", trees[0])
    assert sent_trees(store, "h100b\n/../x") == trees[:2], "a tree that is sent again is the newest"
    assert sent_trees(store, "nobody") == []


def test_what_was_recorded_long_ago_goes_and_comes_back_where_it_is_needed(repo: Path, store: Path) -> None:
    old = tree(repo, store, "kept here\n")
    record_sent_tree(store, "box", old)
    for path in store.rglob("*"):
        os.utime(path, (time.time() - 91 * DAY,) * 2)
    young = tree(repo, store, "young\n")
    record_sent_tree(store, "young", young)
    prune_store(store)
    assert present(store, old, young) == [False, True]
    assert (sent_trees(store, "box"), sent_trees(store, "young")) == ([], [young])
    assert tree(repo, store, "kept here\n") == old and present(store, old) == [True]


def test_it_is_tidied_by_itself_once_a_day(repo: Path, store: Path) -> None:
    name = tree(repo, store, "a\n")
    record_sent_tree(store, "long ago", name)
    record_sent_tree(store, "box", name)
    for path in (*store.glob("sent-*"), store / "pruned"):
        os.utime(path, (time.time() - 91 * DAY,) * 2)
    record_sent_tree(store, "box", name)
    assert (sent_trees(store, "long ago"), sent_trees(store, "box")) == ([], [name])
    assert time.time() - (store / "pruned").stat().st_mtime < DAY


def test_a_store_in_use_is_not_tidied(repo: Path, store: Path) -> None:
    record_sent_tree(store, "box", tree(repo, store, "a\n"))
    (note,) = store.glob("sent-*")
    os.utime(note, (time.time() - 91 * DAY,) * 2)
    with file_lock(str(store / "lock"), exclusive=True, timeout=0):
        prune_store(store)
    assert sent_trees(store, "box") != []


def test_a_new_store_has_those_removed_that_nobody_has_used_for_long(repo: Path, store: Path) -> None:
    others = [store.with_name(name) for name in ("old", "young")]
    for other in others:
        take_snapshot(repo, other)
    plain = store.with_name("not a store")
    plain.mkdir()
    for path in (others[0], plain):
        os.utime(path, (time.time() - 15 * DAY,) * 2)
    record_sent_tree(store, "box", "0" * 40)
    assert [path.exists() for path in (*others, plain, store)] == [False, True, True, True]
