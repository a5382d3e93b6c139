"""Real repositories → clones. Every clone is taken under `untouched`, which compares the source before and after."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.checkout.clone import materialize
from ci_tasks.checkout.revision import BASE, resolve_base
from ci_tasks.errors import CheckoutError
from ci_tasks.records import Checkout

repositories = sys.modules["ci_tasks_tests_repositories"]
git, make_repo, commit = repositories.git, repositories.make_repo, repositories.commit
contents, untouched = repositories.contents, repositories.untouched
CHANGES = repositories.CHANGES


def snapshot(source: Path, workspace: Path, *, rev: str | None = None, base: str | None = None) -> Checkout:
    with untouched(source):
        return materialize(source, workspace, rev=rev, base=base)


def test_a_clean_tree_is_the_very_commit_of_head(repo: Path, tmp_path: Path) -> None:
    made = snapshot(repo, tmp_path / "w")
    assert (made.commit, made.dirty, made.path) == (git(repo, "rev-parse", "HEAD"), (), str(repo))
    assert made.tree == git(repo, "rev-parse", "HEAD^{tree}") == git(tmp_path / "w", "rev-parse", "HEAD^{tree}")
    assert contents(tmp_path / "w") == contents(repo)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_the_clone_has_what_the_work_tree_has(repo: Path, tmp_path: Path, change: Callable[[Path], list[str]]) -> None:
    dirty = change(repo)
    made = snapshot(repo, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(repo)
    assert sorted(made.dirty) == sorted(dirty)
    for name in ("kept.txt", "dangling"):
        if os.path.lexists(repo / name):
            assert os.lstat(tmp_path / "w" / name).st_mode == os.lstat(repo / name).st_mode
    head = git(repo, "rev-parse", "HEAD")
    assert git(tmp_path / "w", "rev-parse", "HEAD" + ("^" if dirty else "")) == head


def test_ignored_files_stay_at_home(repo: Path, tmp_path: Path, own_home: Path) -> None:
    (tmp_path / "everywhere").write_text("*.swp\n")
    git(repo, "config", "--global", "core.excludesFile", str(tmp_path / "everywhere"))
    (repo / ".git/info/exclude").write_text("*.mine\n")
    for name in ("x.log", "x.swp", "x.mine"):
        (repo / name).write_text("ignored\n")
    made = snapshot(repo, tmp_path / "w")
    assert sorted(contents(tmp_path / "w")) == [b".gitignore", b"kept.txt", b"sub/inner.txt"]
    assert made.dirty == ()


def test_the_same_tree_is_the_same_commit_again(repo: Path, tmp_path: Path) -> None:
    repositories.modified(repo)
    assert snapshot(repo, tmp_path / "a").commit == snapshot(repo, tmp_path / "b").commit


def test_an_old_workspace_is_replaced(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/left").write_text("from before")
    snapshot(repo, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(repo)


def test_a_clone_of_a_clone_is_the_same(repo: Path, tmp_path: Path) -> None:
    """As rows are checked out: every one from the batch's clone."""
    repositories.odd_names(repo)
    first = snapshot(repo, tmp_path / "first")
    second = snapshot(tmp_path / "first", tmp_path / "second", rev="HEAD", base=BASE)
    assert (second.commit, second.tree) == (first.commit, first.tree)
    assert contents(tmp_path / "second") == contents(repo)


def test_an_edit_in_the_second_in_which_the_index_was_written_is_seen(repo: Path, tmp_path: Path) -> None:
    """git trusts a file's time and size unless the file is as young as the index: the copied index keeps its time."""
    for _ in range(20):
        (repo / "kept.txt").write_text("aaaa\n")
        git(repo, "add", "kept.txt")
        (repo / "kept.txt").write_text("bbbb\n")
        if int(os.stat(repo / "kept.txt").st_mtime) == int(os.stat(repo / ".git/index").st_mtime):
            break
    time.sleep(1.1)
    snapshot(repo, tmp_path / "w")
    assert (tmp_path / "w/kept.txt").read_text() == "bbbb\n"


@pytest.mark.parametrize(
    "name", ["sp ace", "quo'te\"s", "new\nline", "back\\slash", "dollar $HOME `x`", "ünï", "#x", "-x"]
)
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    repo = make_repo(tmp_path / name / "repo")
    repositories.modified(repo)
    snapshot(repo, tmp_path / name / "w" / name)
    assert contents(tmp_path / name / "w" / name) == contents(repo)


def test_a_path_that_is_no_text_will_do(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / os.fsdecode(b"caf\xe9") / "repo")
    snapshot(repo, tmp_path / os.fsdecode(b"caf\xe9") / "w")
    assert contents(tmp_path / os.fsdecode(b"caf\xe9") / "w") == contents(repo)


@pytest.mark.parametrize("setting", ["core.autocrlf=true", "core.autocrlf=input", "core.eol=crlf"])
def test_line_ends_are_those_on_disk_whatever_the_user_has_set(
    repo: Path, tmp_path: Path, own_home: Path, setting: str
) -> None:
    """With autocrlf the user's files have CRLF where the commit, and CI, have LF: that is named."""
    git(repo, "config", "--global", *setting.split("="))
    git(repo, "config", "--global", "core.safecrlf", "true")
    (repo / "kept.txt").write_bytes(b"kept\r\n")
    (repo / "new.txt").write_bytes(b"new\r\n")
    made = snapshot(repo, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(repo)
    assert made.dirty == ("kept.txt", "new.txt")
    assert [found.files for found in made.conversions] == [("kept.txt",)]


def test_files_committed_with_other_line_ends_than_their_attributes_ask_for_are_no_error(
    repo: Path, tmp_path: Path
) -> None:
    (repo / "run.bat").write_bytes(b"one\r\n")
    commit(repo)
    (repo / ".gitattributes").write_text("*.bat text\n")
    git(repo, "add", ".gitattributes")
    git(repo, "commit", "-q", "-m", "attributes")
    made = snapshot(repo, tmp_path / "w", rev="HEAD")
    assert made.tree == git(repo, "rev-parse", "HEAD^{tree}")


def test_a_repository_without_any_commit(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    (repo / "first.txt").write_text("first\n")
    made = snapshot(repo, tmp_path / "w")
    assert contents(tmp_path / "w") == {b"first.txt": b"first\n"}
    assert made.dirty == ("first.txt",)
    assert git(tmp_path / "w", "rev-list", "--count", "HEAD") == "1"


def test_an_empty_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "repo")
    snapshot(tmp_path / "repo", tmp_path / "w")
    assert contents(tmp_path / "w") == {}


def test_a_linked_worktree_has_its_own_index_and_head(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    (tmp_path / "linked/kept.txt").write_text("in the linked one\n")
    (tmp_path / "linked/staged.log").write_text("forced\n")
    git(tmp_path / "linked", "add", "--force", "staged.log")
    with untouched(repo):
        snapshot(tmp_path / "linked", tmp_path / "w")
    assert contents(tmp_path / "w") == contents(tmp_path / "linked")


def test_a_shallow_clone(repo: Path, tmp_path: Path) -> None:
    repositories.modified(repo)
    commit(repo, "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    (tmp_path / "shallow/new.txt").write_text("new\n")
    snapshot(tmp_path / "shallow", tmp_path / "w")
    assert contents(tmp_path / "w") == contents(tmp_path / "shallow")
    assert git(tmp_path / "w", "rev-list", "--count", "HEAD") == "2"


def test_a_repository_with_sha256_names(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "repo")
    (tmp_path / "repo/a.txt").write_text("a\n")
    made = snapshot(tmp_path / "repo", tmp_path / "w")
    assert len(made.tree) == 64


def test_a_sparse_checkout_gives_the_whole_commit(repo: Path, tmp_path: Path) -> None:
    git(repo, "sparse-checkout", "set", "--no-cone", "/kept.txt")
    assert not (repo / "sub/inner.txt").exists()
    (repo / "kept.txt").write_text("changed\n")
    made = snapshot(repo, tmp_path / "w")
    assert (tmp_path / "w/sub/inner.txt").read_text() == "inner\n"
    assert made.dirty == ("kept.txt",)


def test_from_within_a_git_hook_it_is_still_the_named_checkout(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repo(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    with untouched(other):
        materialize(repo, tmp_path / "w")
    monkeypatch.undo()
    assert contents(tmp_path / "w") == contents(repo)


def test_a_large_file(repo: Path, tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    (repo / "large.bin").write_bytes(block * 20)
    snapshot(repo, tmp_path / "w")
    assert (tmp_path / "w/large.bin").read_bytes() == block * 20


def test_a_workspace_inside_the_checkout_is_no_part_of_it(repo: Path) -> None:
    """`plan --out DIR` from within the checkout."""
    (repo / "untracked.txt").write_text("new\n")
    for _ in range(2):
        made = materialize(repo, repo / "out[1]/w")
        assert made.dirty == ("untracked.txt",)


# Revisions and the base


def test_a_revision_leaves_the_working_tree_out(repo: Path, tmp_path: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    repositories.modified(repo)
    commit(repo, "second")
    git(repo, "tag", "-a", "-m", "tag", "v1", first)
    (repo / "untracked.txt").write_text("new\n")
    made = snapshot(repo, tmp_path / "w", rev="v1")
    assert (made.commit, made.dirty) == (first, ())
    assert (tmp_path / "w/kept.txt").read_text() == "kept\n"
    assert not (tmp_path / "w/untracked.txt").exists()


def test_an_unknown_revision_is_an_error_with_the_branches(repo: Path, tmp_path: Path) -> None:
    git(repo, "branch", "feature/long-name")
    with pytest.raises(CheckoutError, match="has no revision 'feature/long-nam'") as caught, untouched(repo):
        materialize(repo, tmp_path / "w", rev="feature/long-nam")
    assert caught.value.hint == "branches here: feature/long-name, main, origin/main"


def test_an_unknown_base_says_how_to_name_one(repo: Path) -> None:
    with pytest.raises(CheckoutError, match="has no revision 'upstream/main' to compare with") as caught:
        resolve_base(repo, "upstream/main")
    assert caught.value.hint.startswith("pass --base REV; branches here: ")
    assert "origin/main" in caught.value.hint


def test_hundreds_of_branches_are_not_all_listed(repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    updates = "".join(f"create refs/heads/b{number} {head}\n" for number in range(100))
    subprocess.run(["git", "update-ref", "--stdin"], cwd=repo, input=updates, text=True, check=True)
    with pytest.raises(CheckoutError) as caught:
        resolve_base(repo, "nope")
    assert caught.value.hint.count(",") == 11 and caught.value.hint.endswith(" and 90 more")


@pytest.mark.parametrize("rev", ["--all", "-h", "", "HEAD:kept.txt", "HEAD^{tree}", "a b", "@{upstream}"])
def test_what_is_no_commit_is_no_revision(repo: Path, rev: str) -> None:
    with pytest.raises(CheckoutError, match="has no revision"):
        resolve_base(repo, rev)


def test_the_workspace_compares_with_the_base_as_ci_does(repo: Path, tmp_path: Path) -> None:
    """`git diff origin/main...HEAD` there sees commits since the base, and uncommitted and untracked files."""
    (repo / "committed.txt").write_text("committed\n")
    commit(repo)
    repositories.modified(repo)
    (repo / "untracked.txt").write_text("new\n")
    snapshot(repo, tmp_path / "w")
    changed = git(tmp_path / "w", "diff", "--name-status", "origin/main...HEAD")
    assert changed.split() == ["A", "committed.txt", "M", "kept.txt", "A", "untracked.txt"]


def test_another_base(repo: Path, tmp_path: Path) -> None:
    (repo / "committed.txt").write_text("committed\n")
    commit(repo)
    (repo / "untracked.txt").write_text("new\n")
    snapshot(repo, tmp_path / "w", base="main")
    assert git(tmp_path / "w", "diff", "--name-only", "origin/main...HEAD") == "untracked.txt"


def test_an_unknown_base_is_an_error(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="to compare with"):
        materialize(repo, tmp_path / "w", base="nope")


def test_without_a_base_the_workspace_has_none(repo: Path, tmp_path: Path) -> None:
    git(repo, "update-ref", "-d", "refs/remotes/origin/main")
    snapshot(repo, tmp_path / "w")
    assert git(tmp_path / "w", "for-each-ref", "refs/remotes") == ""


# Parts of a repository, and none


def test_a_directory_of_a_repository_is_a_repository_of_its_own(part: Path, repo: Path, tmp_path: Path) -> None:
    with untouched(repo):
        made = snapshot(part, tmp_path / "w")
    assert made.dirty == ()
    assert made.tree == git(repo, "rev-parse", "HEAD:examples/s ample")
    assert contents(tmp_path / "w") == contents(part)
    assert git(tmp_path / "w", "diff", "--name-only", "origin/main...HEAD") == ""


def test_its_uncommitted_changes_travel_and_others_do_not(part: Path, repo: Path, tmp_path: Path) -> None:
    (repo / "kept.txt").write_text("changed above\n")
    (part / "a.txt").write_text("changed\n")
    (part / "new.txt").write_text("new\n")
    (part / "b.txt").unlink()
    (part / "ignored.log").write_text("ignored by the repository around\n")
    (part / "forced.log").write_text("forced\n")
    git(repo, "add", "--force", "examples/s ample/forced.log")
    with untouched(repo):
        made = snapshot(part, tmp_path / "w")
    assert sorted(made.dirty) == ["a.txt", "b.txt", "forced.log", "new.txt"]
    assert sorted(contents(tmp_path / "w")) == [b"a.txt", b"forced.log", b"new.txt"]
    changed = git(tmp_path / "w", "diff", "--name-status", "origin/main...HEAD").split()
    assert changed == ["M", "a.txt", "D", "b.txt", "A", "forced.log", "A", "new.txt"]


def test_a_revision_of_it(part: Path, repo: Path, tmp_path: Path) -> None:
    (part / "a.txt").write_text("changed\n")
    commit(repo)
    made = snapshot(part, tmp_path / "w", rev="HEAD^")
    assert (tmp_path / "w/a.txt").read_text() == "a\n"
    assert made.dirty == ()


def test_a_base_of_it(part: Path, repo: Path, tmp_path: Path) -> None:
    (part / "a.txt").write_text("committed change\n")
    commit(repo)
    (part / "new.txt").write_text("new\n")
    made = snapshot(part, tmp_path / "w", base="HEAD^")
    assert made.dirty == ("new.txt",)
    assert git(tmp_path / "w", "diff", "--name-only", "origin/main...HEAD").split() == ["a.txt", "new.txt"]


def test_a_base_that_does_not_have_it_yet(part: Path, tmp_path: Path) -> None:
    snapshot(part, tmp_path / "w", base="origin/main")
    assert git(tmp_path / "w", "diff", "--name-only", "origin/main...HEAD").split() == ["a.txt", "b.txt"]


def test_a_revision_that_does_not_have_it_yet(part: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="there is no examples/s ample at 'origin/main'"):
        materialize(part, tmp_path / "w", rev="origin/main")


def test_an_uncommitted_directory_of_a_repository(repo: Path, tmp_path: Path) -> None:
    (repo / "fresh").mkdir()
    (repo / "fresh/a.txt").write_text("a\n")
    with untouched(repo):
        made = snapshot(repo / "fresh", tmp_path / "w")
    assert made.dirty == ("a.txt",)
    assert contents(tmp_path / "w") == {b"a.txt": b"a\n"}


def test_an_ignored_directory_of_a_repository_is_one_without_git(repo: Path, tmp_path: Path) -> None:
    """The sample of a package that is installed in a checkout's own .venv."""
    (repo / ".gitignore").write_text(".venv/\n")
    (repo / ".venv/sample").mkdir(parents=True)
    (repo / ".venv/sample/a.txt").write_text("a\n")
    with untouched(repo):
        made = snapshot(repo / ".venv/sample", tmp_path / "w")
    assert contents(tmp_path / "w") == {b"a.txt": b"a\n"}
    assert made.dirty == ()


def test_a_directory_without_git(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("a\n")
    (plain / ".gitignore").write_text("*.log\n")
    (plain / "x.log").write_text("ignored\n")
    made = snapshot(plain, tmp_path / "w")
    assert sorted(contents(tmp_path / "w")) == [b".gitignore", b"a.txt"]
    assert made.dirty == ()
    assert git(tmp_path / "w", "diff", "--name-only", "origin/main...HEAD") == ""
    assert not (plain / ".git").exists()


@pytest.mark.parametrize(("rev", "base"), [("v1", None), (None, "main")])
def test_a_directory_without_git_has_no_revision(tmp_path: Path, rev: str | None, base: str | None) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(CheckoutError, match="is not a git repository"):
        materialize(tmp_path / "plain", tmp_path / "w", rev=rev, base=base)


def test_a_repository_of_another_user_travels_since_nothing_of_it_is_executed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert materialize(repo, tmp_path / "w").commit == git(
        repo, "rev-parse", "HEAD", GIT_TEST_ASSUME_DIFFERENT_OWNER=""
    )


# Repositories inside


def test_a_submodule_that_is_there_travels(with_submodule: Path, tmp_path: Path) -> None:
    made = snapshot(with_submodule, tmp_path / "w")
    assert made.commit == git(with_submodule, "rev-parse", "HEAD")
    assert contents(tmp_path / "w") == contents(with_submodule)
    assert git(tmp_path / "w/third party", "rev-parse", "HEAD") == git(tmp_path / "library", "rev-parse", "HEAD")


def test_its_uncommitted_files_travel_too_and_are_part_of_the_tree(with_submodule: Path, tmp_path: Path) -> None:
    clean = snapshot(with_submodule, tmp_path / "clean")
    (with_submodule / "third party/kept.txt").write_text("changed\n")
    (with_submodule / "third party/new.txt").write_text("new\n")
    made = snapshot(with_submodule, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(with_submodule)
    assert made.dirty == ("third party",)
    assert made.tree != clean.tree


def test_rows_get_the_same_submodule_as_the_batch(with_submodule: Path, tmp_path: Path) -> None:
    (with_submodule / "third party/kept.txt").write_text("changed\n")
    first = snapshot(with_submodule, tmp_path / "first")
    (with_submodule / "third party/kept.txt").write_text("changed again, while the rows run\n")
    second = materialize(tmp_path / "first", tmp_path / "second", rev="HEAD")
    assert second.tree == first.tree
    assert (tmp_path / "second/third party/kept.txt").read_text() == "changed\n"


def test_a_revision_has_the_submodule_of_that_time(with_submodule: Path, tmp_path: Path) -> None:
    (with_submodule / "third party/kept.txt").write_text("later\n")
    commit(with_submodule / "third party")
    commit(with_submodule)
    snapshot(with_submodule, tmp_path / "w", rev="HEAD^")
    assert (tmp_path / "w/third party/kept.txt").read_text() == "kept\n"


def test_a_submodule_that_was_never_fetched_is_an_empty_directory_as_in_ci(
    with_submodule: Path, tmp_path: Path
) -> None:
    git(with_submodule, "submodule", "--quiet", "deinit", "--all")
    made = snapshot(with_submodule, tmp_path / "w")
    assert made.dirty == ()
    assert list((tmp_path / "w/third party").iterdir()) == []


def test_an_untracked_repository_inside_travels_as_a_submodule_would(repo: Path, tmp_path: Path) -> None:
    make_repo(repo / "nested")
    made = snapshot(repo, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(repo)
    assert made.dirty == ("nested",)


def test_an_ignored_repository_inside_stays_at_home(repo: Path, tmp_path: Path) -> None:
    make_repo(repo / "nested.log")
    snapshot(repo, tmp_path / "w")
    assert not (tmp_path / "w/nested.log").exists()


def test_a_repository_inside_without_a_commit_travels_too(repo: Path, tmp_path: Path) -> None:
    (repo / "nested").mkdir()
    git(repo / "nested", "init", "-q")
    (repo / "nested/new.txt").write_text("new\n")
    snapshot(repo, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(repo)


def test_a_submodule_of_a_part(part: Path, repo: Path, tmp_path: Path) -> None:
    make_repo(part / "nested")
    snapshot(part, tmp_path / "w")
    assert contents(tmp_path / "w") == contents(part)


# The proof


@pytest.mark.parametrize("then", ["echo spoilt >> kept.txt", "chmod +x kept.txt", "rm kept.txt"])
def test_a_clone_that_is_not_the_tree_is_an_error(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """A git that spoils one file right after its checkout, as a full disk or a virus scanner might."""
    real = shutil.which("git")
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n{real} "$@" || exit\ncase " $* " in *" -u "*) {then};; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with pytest.raises(CheckoutError, match=r"is not the tree [0-9a-f]{40}:.*kept\.txt"):
        materialize(repo, tmp_path / "w")
