"""The commits between two revisions, of real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.checkout.repository import commits_between, default_base, fetch_commit, parent_positions
from ci_tasks.errors import CheckoutError, UsageError
from tests.checkout.repositories import commit, git


@pytest.fixture
def merged(repo: Path) -> Path:
    """start ─ one ─ two ─ merge ─ last, with a side branch of two commits from `start`; each commit has a tag."""
    git(repo, "tag", "start")
    for name in ("one", "two"):
        commit(repo, name)
        git(repo, "tag", name)
    git(repo, "checkout", "-q", "-b", "side", "start")
    for name in ("left", "right"):
        commit(repo, name)
        git(repo, "tag", name)
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge", "side")
    git(repo, "tag", "merge")
    commit(repo, "last")
    return repo


def test_every_commit_comes_after_its_parents_and_the_bad_end_last(merged: Path) -> None:
    history = commits_between(merged, "start", "main")
    subjects = [commit.subject for commit in history[1:]]
    assert sorted(subjects) == ["last", "left", "merge", "one", "right", "two"]
    assert subjects[-2:] == ["merge", "last"]
    assert history[0].sha == git(merged, "rev-parse", "start")
    assert history[-1].sha == git(merged, "rev-parse", "main")
    for place, parents in enumerate(parent_positions(history), 1):
        assert all(parent < place for parent in parents)
    assert len(parent_positions(history)[subjects.index("merge")]) == 2


def test_clocks_that_differ_do_not_matter(repo: Path) -> None:
    for name, above, date in (("parent", "HEAD", 2000000000), ("child", "parent", 1900000000), ("old", "parent", 1)):
        made = git(repo, "commit-tree", "-p", above, "-m", name, "HEAD^{tree}", GIT_COMMITTER_DATE=f"@{date} +0000")
        git(repo, "tag", name, made)
    git(repo, "tag", "both", git(repo, "commit-tree", "-p", "child", "-p", "old", "-m", "both", "HEAD^{tree}"))
    history = commits_between(repo, "HEAD", "both")
    assert history[1].subject == "parent"
    assert sorted(parent_positions(history)[-1]) == [2, 3]


def test_what_a_side_branch_has_from_before_the_good_end_is_not_among_them(merged: Path) -> None:
    history = commits_between(merged, "two", "main")
    assert [commit.subject for commit in history[1:]] == ["left", "right", "merge", "last"]
    assert parent_positions(history) == [[0], [1], [0, 2], [3]]


def test_with_first_parent_a_merge_is_one_commit(merged: Path) -> None:
    history = commits_between(merged, "start", "main", first_parent=True)
    assert [commit.subject for commit in history[1:]] == ["one", "two", "merge", "last"]
    assert parent_positions(history) == [[0], [1], [2], [3]]


def test_a_commit_has_what_a_person_wants_to_see_of_it(repo: Path) -> None:
    env = {"GIT_AUTHOR_NAME": "Zoë", "GIT_AUTHOR_DATE": "2026-01-02T03:04:05+0100"}
    git(repo, "commit", "-q", "--allow-empty", "-m", "ünder\x1f'quotes'\n\nmore", **env)
    _, history = commits_between(repo, "HEAD~1", "HEAD")
    assert (history.author, history.subject) == ("Zoë <t@example.com>", "ünder\x1f'quotes'")
    assert history.date == "2026-01-02T03:04:05+01:00"


@pytest.mark.parametrize(
    ("good", "bad", "message", "hint"),
    [
        ("main", "main", "--good main ({main}) is --bad main ({main})", "merge base is {main}"),
        ("two", "right", "is not an ancestor of --bad right", "merge base is {start}"),
        ("lonely", "main", "is not an ancestor", "merge base is none"),
        ("nowhere", "main", "no revision 'nowhere'", "branches here"),
    ],
)
def test_ends_that_are_no_ends_are_refused(merged: Path, good: str, bad: str, message: str, hint: str) -> None:
    git(merged, "tag", "lonely", git(merged, "commit-tree", "-m", "lonely", "main^{tree}"))
    names = {name: git(merged, "rev-parse", name)[:12] for name in ("start", "main")}
    with pytest.raises(UsageError) as caught:
        commits_between(merged, good, bad)
    assert message.format(**names) in caught.value.message
    assert hint.format(**names) in caught.value.hint


@pytest.mark.parametrize(("fetched", "message"), [((), "has no revision"), (("tag", "two"), "is not an ancestor")])
def test_a_shallow_clone_says_what_to_do(merged: Path, tmp_path: Path, fetched: tuple[str, ...], message: str) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{merged}", str(clone))
    git(clone, "fetch", "-q", "--depth", "1", "origin", *fetched)
    with pytest.raises(UsageError, match=message) as caught:
        commits_between(clone, git(merged, "rev-parse", "two"), "HEAD")
    assert "fetch --unshallow" in caught.value.hint


def test_a_checkout_without_a_commit_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(CheckoutError, match="it has no commit yet"):
        default_base(tmp_path)


def test_a_login_in_the_address_is_left_out(repo: Path, tmp_path: Path) -> None:
    """git would hand it to a program of its own as an argument."""
    with pytest.raises(CheckoutError) as caught:
        fetch_commit(repo, "1" * 40, tmp_path / "store", url="http://anna:s3cr%25t-word@127.0.0.1:1/r")
    assert "http://127.0.0.1:1/r" in str(caught.value) and "s3cr" not in str(caught.value)
