"""Working trees → workspaces here and on a host, with real git. Each one is taken under `untouched`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.files import file_lock
from ci_tasks.agent.git import MissingBase
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.workspace import TreeStore
from ci_tasks.checkout import snapshot as snapshots
from ci_tasks.checkout.repository import BASE, resolve_rev
from ci_tasks.checkout.snapshot import Snapshot, materialize, take_snapshot, thin_pack
from ci_tasks.errors import CheckoutError
from tests.agent.trees.support import receive
from tests.checkout.repositories import CHANGES, change, commit, contents, git, make_repo, untouched


class Journey:
    """A client's store and a host's. `sent` are the bytes of the last pack."""

    def __init__(self, directory: Path) -> None:
        self.client, self.workspace, self.sent = directory / "client", directory / "there", 0
        self.known: list[str] = []
        self.host = TreeStore(str(directory / "host.git"))

    def take(self, source: Path, **how: Any) -> Snapshot:
        with untouched(source):
            return take_snapshot(source, self.client, **how)

    def send(self, snapshot: Snapshot, have: Sequence[str]) -> None:
        chunks = list(thin_pack(snapshot, have))
        self.sent = sum(map(len, chunks))
        receive(self.host, chunks)

    def check_out(self, snapshot: Snapshot) -> None:
        self.host.check_out(snapshot.checkout_parts, str(self.workspace))
        self.known.insert(0, snapshot.flat)

    def go(self, source: Path, **how: Any) -> Snapshot:
        snapshot = self.take(source, **how)
        self.send(snapshot, self.known[:3])
        self.check_out(snapshot)
        return snapshot

    def both(self, source: Path, **how: Any) -> Checkout:
        """Here and there."""
        here = self.workspace.with_name("here")
        with untouched(source):
            made = materialize(source, here, **{"rev": None, **how})
        assert self.go(source, **how).checkout == made
        assert contents(here) == contents(self.workspace)
        assert git(self.workspace, "status", "--porcelain") == ""
        return made


def objects(store: Path) -> list[str]:
    return git(store, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()


@pytest.fixture
def journey(tmp_path: Path) -> Journey:
    return Journey(tmp_path)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


def test_a_clean_tree_is_the_very_commit_of_head(repo: Path, journey: Journey, here: Path) -> None:
    made = journey.both(repo)
    assert (made.commit, made.dirty, made.path) == (git(repo, "rev-parse", "HEAD"), (), str(repo))
    assert made.commit == git(journey.workspace, "rev-parse", "HEAD") == git(here, "rev-parse", "HEAD")
    assert contents(here) == contents(repo)
    assert git(journey.workspace, "rev-list", "--count", "HEAD") == "1"


@pytest.mark.parametrize("name", CHANGES)
def test_the_workspace_has_what_the_work_tree_has(repo: Path, journey: Journey, here: Path, name: str) -> None:
    journey.go(repo)
    change(repo, name)
    made = journey.both(repo)
    disk = contents(repo)
    assert contents(here) == {path: disk[path] for path in disk if path != b"new.txt"}
    if name != "odd names":
        assert sorted(made.dirty) == sorted(CHANGES[name][1])
    assert git(here, "rev-parse", "HEAD" + ("^" if made.dirty else "")) == git(repo, "rev-parse", "HEAD")


def test_ignored_files_stay_and_are_in_no_pack(repo: Path, journey: Journey, tmp_path: Path) -> None:
    (tmp_path / "everywhere").write_text("*.swp\n")
    git(repo, "config", "--global", "core.excludesFile", str(tmp_path / "everywhere"))
    (repo / ".git/info/exclude").write_text("*.mine\n")
    for name in ("x.log", "x.swp", "x.mine"):
        (repo / name).write_text("ignored\n")
    assert journey.both(repo).dirty == ()
    assert git(repo, "hash-object", "kept.txt") in objects(tmp_path / "host.git")
    assert git(repo, "hash-object", "x.log") not in objects(tmp_path / "host.git")


def test_rows_are_cloned_from_the_batchs_clone_as_the_same_commit(with_submodule: Path, tmp_path: Path) -> None:
    change(with_submodule, "odd names")
    (with_submodule / "third party/kept.txt").write_text("changed\n")
    first, again = (materialize(with_submodule, tmp_path / name, rev=None) for name in ("first", "again"))
    second = materialize(tmp_path / "first", tmp_path / "second", rev=first.commit, base=BASE)
    assert (second.commit, second.tree) == (first.commit, first.tree) == (again.commit, again.tree)
    assert contents(tmp_path / "second") == contents(with_submodule)


@pytest.mark.parametrize("kind", ["unborn", "empty", "linked", "shallow", "plain", "borrowing"])
def test_a_directory_of_every_kind_travels(repo: Path, tmp_path: Path, journey: Journey, here: Path, kind: str) -> None:
    source = tmp_path / kind
    commands = {
        "unborn": "git init -q unborn",
        "empty": "git init -q empty",
        "linked": "git -C repo worktree add -q -b x ../linked",
        "shallow": 'git -C repo commit -qm x --allow-empty; git clone -q --depth 1 "file://$PWD/repo" shallow',
        "plain": "mkdir plain; echo '*.log' > plain/.gitignore; touch plain/a.log plain/b",
        "borrowing": "git clone -q --shared repo borrowing",
    }
    subprocess.run(["sh", "-ec", commands[kind]], cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    for text in ("one\n", "two\n"):
        if kind != "empty":
            (source / "new.txt").write_text(text)
        journey.both(source)
        on_disk = contents(source.resolve())
        on_disk.pop(b"a.log", None)
        assert contents(here) == on_disk


def test_objects_of_another_kind_are_refused(tmp_path: Path, journey: Journey) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "other")
    with pytest.raises(CheckoutError, match="SHA-256"):
        journey.take(tmp_path / "other")


def test_from_within_a_git_hook_it_is_still_the_named_checkout(
    repo: Path, tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repo(tmp_path / "other")
    with untouched(other), monkeypatch.context() as hook:
        for name, path in {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index", "GIT_WORK_TREE": ""}.items():
            hook.setenv(name, str(other / path))
        hook.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        materialize(repo, here, rev=None)
    assert contents(here) == contents(repo)


def test_a_replaced_commit_is_what_it_is(repo: Path, journey: Journey) -> None:
    first = git(repo, "rev-parse", "HEAD")
    change(repo, "modified")
    second = commit(repo)
    git(repo, "replace", second, first)
    assert (journey.both(repo).commit, journey.go(repo).read_file("kept.txt")) == (second, "changed\n")


# Revisions, the base, and directories of a repository


def test_a_revision_leaves_the_working_tree_out(repo: Path, journey: Journey, here: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    change(repo, "modified")
    commit(repo)
    git(repo, "tag", "-a", "-m", "tag", "v1", first)
    (repo / "untracked.txt").write_text("new\n")
    made = journey.both(repo, rev="v1")
    assert (made.commit, made.head, made.dirty) == (first, first, ())
    assert (here / "kept.txt").read_text() == "kept\n" and not (here / "untracked.txt").exists()


def test_an_unknown_revision_or_base_is_an_error_with_some_branches(repo: Path, journey: Journey) -> None:
    git(repo, "branch", "feature/long-name")
    with pytest.raises(CheckoutError, match="has no revision 'feature/long-nam'") as caught:
        journey.take(repo, rev="feature/long-nam")
    assert caught.value.hint == "branches here: feature/long-name, main, origin/main"
    updates = "".join(f"create refs/heads/b{number} HEAD\n" for number in range(100))
    subprocess.run(["git", "update-ref", "--stdin"], cwd=repo, input=updates, text=True, check=True)
    with pytest.raises(CheckoutError) as caught:
        resolve_rev(repo, "nope")
    assert caught.value.hint.endswith(" and 91 more")


@pytest.mark.parametrize("rev", ["--all", "-h", "", "HEAD:kept.txt", "HEAD^{tree}", "a b", "@{upstream}"])
def test_what_is_no_commit_is_no_revision(repo: Path, rev: str) -> None:
    with pytest.raises(CheckoutError, match="has no revision"):
        resolve_rev(repo, rev)


@pytest.mark.parametrize(
    ("base", "changed"), [(None, "committed.txt kept.txt untracked.txt"), ("main", "kept.txt untracked.txt")]
)
def test_the_workspace_compares_with_the_base_as_ci_does(repo: Path, here: Path, base: str, changed: str) -> None:
    (repo / "committed.txt").write_text("committed\n")
    commit(repo)
    change(repo, "modified")
    (repo / "untracked.txt").write_text("new\n")
    materialize(repo, here, rev=None, base=base)
    assert git(here, "diff", "--name-only", "origin/main...HEAD").split() == changed.split()
    git(repo, "update-ref", "-d", "refs/remotes/origin/main")
    materialize(repo, here, rev=None)
    assert git(here, "for-each-ref", "refs/remotes") == ""


def test_a_directory_of_a_repository_is_tested_alone(repo: Path, journey: Journey, here: Path) -> None:
    part = repo / "examples/s ample"
    part.mkdir(parents=True)
    (part / ".gitignore").write_text("*.tmp\n")
    for name in ("a.txt", "ignored.tmp"):
        (part / name).write_text("a\n")
    with untouched(repo):
        journey.both(part)
    assert sorted(contents(here)) == [b".gitignore", b"a.txt"]
    with pytest.raises(CheckoutError, match="is not the root of a git repository"):
        materialize(part, here, rev="HEAD")


@pytest.mark.parametrize("how", [{"rev": "v1"}, {"base": "main"}])
def test_a_directory_without_git_has_no_revision(tmp_path: Path, here: Path, how: dict[str, Any]) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(CheckoutError, match="is not the root of a git repository"):
        materialize(tmp_path / "plain", here, **{"rev": None, **how})


# Submodules and partial clones


def test_submodules_travel_with_what_is_edited_inside(with_submodule: Path, journey: Journey, here: Path) -> None:
    make_repo(with_submodule / "third party/nested")
    clean = journey.both(with_submodule)
    for text in ("one\n", "two\n"):
        (with_submodule / "third party/kept.txt").write_text(text)
        (with_submodule / "third party/nested/new.txt").write_text(text)
        made = journey.both(with_submodule)
        assert (made.dirty, made.tree == clean.tree) == (("third party",), False)
        assert contents(here) == contents(with_submodule)
    parts = journey.take(with_submodule).parts
    assert [part.path for part in parts] == ["", "third party", "third party/nested"]
    assert git(journey.workspace / "third party", "rev-parse", "HEAD^{tree}") == parts[1].checkout.tree
    journey.both(with_submodule, rev="HEAD")
    assert (here / "third party/kept.txt").read_text() == "kept\n"


def test_a_submodule_that_is_not_there_stays_as_committed(with_submodule: Path, journey: Journey, here: Path) -> None:
    git(with_submodule, "submodule", "--quiet", "deinit", "-f", "third party")
    assert journey.both(with_submodule).dirty == ()
    assert os.listdir(here / "third party") == []
    (with_submodule / "third party/kept.txt").write_text("no repository any more\n")
    journey.both(with_submodule)
    assert contents(here) == contents(with_submodule)


@pytest.mark.parametrize("rev", [None, "HEAD^"])
def test_what_a_partial_clone_lacks_is_an_error_that_says_what_to_type_and_nothing_is_fetched(
    repo: Path, tmp_path: Path, journey: Journey, rev: str | None
) -> None:
    change(repo, "modified")
    commit(repo)
    partial = tmp_path / "partial"
    for setting in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        git(repo, "config", setting, "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--sparse", f"file://{repo}", "partial")
    with pytest.raises(CheckoutError) as caught:
        journey.go(partial, rev=rev)
    command = re.search(r"in a partial clone: `(git fetch .*)`", caught.value.hint)
    assert command
    subprocess.run(command[1], shell=True, check=True, capture_output=True, cwd=partial)
    journey.go(partial, rev=rev)
    assert (journey.workspace / "kept.txt").read_text() == ("kept\n" if rev else "changed\n")


# What is sent


def test_after_the_first_time_only_the_difference_is_sent_and_no_history(repo: Path, journey: Journey) -> None:
    lines = [f"{number} {os.urandom(20).hex()}\n" for number in range(5000)]
    (repo / "large.txt").write_text("".join(lines))
    old = commit(repo)
    commit(repo)
    git(repo, "commit-graph", "write", "--reachable")  # has parents too
    journey.go(repo)
    assert journey.sent > 100_000
    lines[2500] = "edited\n"
    (repo / "large.txt").write_text("".join(lines))
    journey.go(repo)
    assert journey.sent < 1500  # a commit, a tree, and some bytes of the file: not the file
    assert contents(journey.workspace) == contents(repo)
    assert old not in objects(Path(journey.host.path))


def test_a_base_that_host_lacks_is_said_and_everything_will_do(repo: Path, tmp_path: Path, journey: Journey) -> None:
    (repo / "large.txt").write_text("".join(f"{number}\n" for number in range(5000)))
    snapshot = journey.go(repo)
    with open(repo / "large.txt", "a") as out:
        out.write("edited\n")
    journey.host = TreeStore(str(tmp_path / "another.git"))
    with pytest.raises(MissingBase):
        journey.go(repo)
    for have in ([], ["0" * 40], [snapshot.parts[0].checkout.commit]):
        journey.send(snapshot, have)
        journey.check_out(snapshot)


@pytest.mark.parametrize("removed", ["big", "big/file.txt"])
def test_base_of_which_user_has_thrown_away_a_part_does_not_matter(repo: Path, journey: Journey, removed: str) -> None:
    (repo / "big").mkdir()
    (repo / "big/file.txt").write_text("x" * 5000)
    commit(repo)
    journey.go(repo)
    name = git(repo, "rev-parse", f"HEAD:{removed}")
    git(repo, "rm", "-q", "-r", "big")
    commit(repo)
    (repo / ".git/objects" / name[:2] / name[2:]).unlink()
    journey.go(repo)
    (repo / "big").mkdir()
    (repo / "big/file.txt").write_text("x" * 5000 + "y")
    journey.go(repo)
    assert contents(journey.workspace) == contents(repo)


def test_an_index_whose_objects_are_gone_is_not_believed(repo: Path, journey: Journey) -> None:
    (repo / "new.txt").write_text("new\n")
    journey.go(repo)
    shutil.rmtree(journey.client / "recorded")
    journey.go(repo)
    assert contents(journey.workspace) == contents(repo)


# Reading, copying and announcing


def test_files_of_a_snapshot_can_be_read_without_a_workspace(with_submodule: Path, journey: Journey) -> None:
    for name, target in {"link": "sub/inner.txt", "to-dir": "sub", "outside": "/etc/passwd", "loop": "loop"}.items():
        (with_submodule / name).symlink_to(target)
    (with_submodule / "a missing").write_text("")
    snapshot = journey.take(with_submodule)
    change(with_submodule, "modified")
    expected = {"kept.txt": "kept\n", "link": "inner\n", "to-dir/inner.txt": "inner\n", "a missing": ""}
    expected["third party/kept.txt"] = "kept\n"
    for name in ("outside", "nothing", "sub", "third party", "no\nthing", "", "../x", "loop", "kept.txt/x"):
        assert snapshot.read_file(name) is None
        assert {each: snapshot.read_file(each) for each in expected} == expected
    assert snapshot.names("", "inner.txt") == ["sub/inner.txt", "third party/sub/inner.txt"]
    assert snapshot.names("th", "kept.txt") == ["third party/kept.txt"]
    assert snapshot.select(["*.txt", ":!sub"]) == ["kept.txt"]
    process = snapshot.reader
    assert os.getpgid(process.pid) != os.getpgid(0)  # ^C at a terminal would end it, and the command with a traceback
    del snapshot
    assert process.wait(20) is not None


def test_trees_are_copied_side_by_side_without_their_repositories(with_submodule: Path, tmp_path: Path) -> None:
    other = make_repo(tmp_path / "other")
    (with_submodule / ".gitattributes").write_text("*.bin filter=lfs\n")
    (with_submodule / "model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    commit(with_submodule)
    (with_submodule / "model.bin").write_text("weights")
    (with_submodule / "x.log").write_text("ignored")
    with untouched(with_submodule):
        made = snapshots.copy_side_by_side({"a": with_submodule, "b": other}, tmp_path / "pair", {"c": "HEAD"})
    files = {str(path.relative_to(tmp_path / "pair")) for path in (tmp_path / "pair").rglob("*") if path.is_file()}
    assert {"a/model.bin", "a/third party/kept.txt", "b/kept.txt"} <= files
    assert (tmp_path / "pair/a/model.bin").read_text() == "weights"
    assert not any(".git/" in f"{name}/" or name.endswith(".log") for name in files)
    named = {found.why: found.files for found in snapshots.all_conversions(made)}
    assert named == {snapshots.LFS: ("a/model.bin",)}


def test_large_untracked_files_are_named_the_largest_first(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LARGE_BYTES", 1000)
    for name, size in {"a": 999, "b": 1000, "new\nline": 5000, "ignored.log": 2000, "tracked": 2000}.items():
        (repo / name).write_bytes(bytes(size))
    (repo / "link").symlink_to("new\nline")
    git(repo, "add", "tracked")
    named: list[tuple[str, int]] = []
    take_snapshot(repo, repo.parent / "store", large=named.extend)
    assert named == [("new\nline", 5000), ("b", 1000)]


# A client's store


DAY = 86400.0


@pytest.fixture
def store(repo: Path, tmp_path: Path) -> Path:
    take_snapshot(repo, tmp_path / "store")
    return tmp_path / "store"


def tree(repo: Path, store: Path, text: str) -> str:
    (repo / "kept.txt").write_text(text)
    return take_snapshot(repo, store).checkout.tree


def test_what_was_recorded_long_ago_goes_and_comes_back_where_it_is_needed(repo: Path, store: Path) -> None:
    old = tree(repo, store, "kept here\n")
    packs = [store / f"recorded/pack/{name}.pack" for name in ("old", "young")]
    packs[0].touch()
    for path in store.rglob("*"):
        os.utime(path, (time.time() - 91 * DAY,) * 2)
    young = tree(repo, store, "young\n")
    packs[1].touch()
    snapshots.prune_store(store)
    assert [name in objects(store) for name in (old, young)] == [False, True]
    assert [pack.exists() for pack in packs] == [False, True]
    assert tree(repo, store, "kept here\n") == old and old in objects(store)


def test_a_store_that_was_not_used_for_long_is_removed_unless_it_is_in_use(repo: Path, store: Path) -> None:
    others = [store.with_name(name) for name in ("old", "young", "locked")]
    for other in others:
        take_snapshot(repo, other)
    for path in (others[0], others[2]):
        os.utime(path, (time.time() - 15 * DAY,) * 2)
    with file_lock(str(others[2] / "lock"), exclusive=True, timeout=0):
        for other in others:
            snapshots.prune_store(other)
    assert [path.exists() for path in others] == [False, True, True]
    os.utime(others[1], (time.time() - 15 * DAY,) * 2)
    take_snapshot(repo, others[1])
    snapshots.prune_store(others[1])
    assert others[1].exists()
