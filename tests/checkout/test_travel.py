"""The code's whole way: working tree → snapshot → packs → a host's store → a workspace there, with real git.

Every snapshot is taken under `untouched`, which compares the source before and after.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees.idle_workspaces import IdleWorkspaces, key_of, release
from ci_tasks.agent.trees.store import MissingBase, StoreError, TreeStore
from ci_tasks.checkout.pack import record_sent_trees, sent_trees, thin_pack
from ci_tasks.checkout.snapshot import Snapshot, SnapshotPart, take_snapshot
from ci_tasks.errors import CheckoutError
from ci_tasks.executors.host_snapshot import RemoteSnapshot

repositories = sys.modules["ci_tasks_tests_repositories"]
git, make_repo, commit = repositories.git, repositories.make_repo, repositories.commit
contents, untouched = repositories.contents, repositories.untouched
CHANGES = repositories.CHANGES


class Travel:
    """A client's store and a host's. `sent` are the bytes of the last journey."""

    def __init__(self, directory: Path) -> None:
        self.client = directory / "client"
        self.host = TreeStore(str(directory / "host.git"))
        self.workspace = directory / "w"
        self.sent = 0

    def take(self, source: Path, *, rev: str | None = None, base: str | None = None) -> Snapshot:
        with untouched(source):
            return take_snapshot(source, self.client, rev=rev, base=base)

    def send(self, snapshot: Snapshot, have: Sequence[str]) -> None:
        chunks = list(thin_pack(snapshot, have))
        self.sent = sum(map(len, chunks))
        self.host.receive(chunks)

    def check_out(self, snapshot: Snapshot, workspace: Path | None = None) -> None:
        self.host.check_out(parts_of(snapshot), str(workspace or self.workspace))
        record_sent_trees(snapshot.store, "box", [snapshot.flat])

    def have(self, snapshot: Snapshot) -> list[str]:
        return sent_trees(snapshot.store, "box")

    def go(self, source: Path, *, rev: str | None = None, base: str | None = None) -> Snapshot:
        with untouched(source):
            snapshot = take_snapshot(source, self.client, rev=rev, base=base)
            self.send(snapshot, self.have(snapshot))
            self.check_out(snapshot)
        return snapshot


def parts_of(snapshot: Snapshot) -> list[CheckoutPart]:
    return RemoteSnapshot(snapshot.checkout, snapshot).checkout_parts()


@pytest.fixture
def travel(tmp_path: Path) -> Travel:
    return Travel(tmp_path)


def modes(root: Path) -> dict[str, int]:
    """Of files and links that git knows something of: x or not, link or not."""
    return {
        os.fsdecode(name): os.lstat(os.path.join(os.fsencode(root), name)).st_mode & 0o170100 for name in contents(root)
    }


def test_a_clean_tree_arrives_as_the_very_commit_of_head(repo: Path, travel: Travel) -> None:
    snapshot = travel.go(repo)
    assert snapshot.checkout.commit == git(repo, "rev-parse", "HEAD") == git(travel.workspace, "rev-parse", "HEAD")
    assert snapshot.checkout.tree == git(travel.workspace, "rev-parse", "HEAD^{tree}")
    assert (snapshot.checkout.path, snapshot.checkout.dirty) == (str(repo), ())
    assert contents(travel.workspace) == contents(repo)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_the_workspace_has_what_the_work_tree_has(
    repo: Path, travel: Travel, change: Callable[[Path], list[str]]
) -> None:
    travel.go(repo)
    dirty = change(repo)
    snapshot = travel.go(repo)
    assert contents(travel.workspace) == contents(repo)
    assert modes(travel.workspace) == modes(repo)
    assert sorted(snapshot.checkout.dirty) == sorted(dirty)
    assert git(travel.workspace, "status", "--porcelain") == ""


def test_a_workspace_needs_nothing_of_the_store(repo: Path, travel: Travel, tmp_path: Path) -> None:
    repositories.modified(repo)
    travel.go(repo)
    os.rename(tmp_path / "host.git", tmp_path / "gone.git")
    assert git(travel.workspace, "fsck", "--full", "--no-dangling") == ""
    assert git(travel.workspace, "rev-list", "--count", "HEAD") == "1"
    assert not (travel.workspace / ".git/objects/info/alternates").exists()


def test_ignored_files_are_in_no_pack(repo: Path, travel: Travel, tmp_path: Path) -> None:
    (repo / "secret.log").write_text("ignored, and maybe secret\n")
    (repo / "untracked.txt").write_text("untracked\n")
    snapshot = travel.go(repo)
    ignored, untracked = (git(repo, "hash-object", name) for name in ("secret.log", "untracked.txt"))
    listed = git(
        tmp_path / "host.git", "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"
    )  # of every pack that came
    assert untracked in listed
    assert ignored not in listed
    assert snapshot.names() == [".gitignore", "kept.txt", "sub/inner.txt", "untracked.txt"]


def test_after_the_first_time_only_the_difference_is_sent(repo: Path, travel: Travel) -> None:
    lines = [f"{number} {os.urandom(20).hex()}\n" for number in range(5000)]
    (repo / "large.txt").write_text("".join(lines))
    commit(repo)
    travel.go(repo)
    full = travel.sent
    lines[2500] = "edited\n"
    (repo / "large.txt").write_text("".join(lines))
    travel.go(repo)
    assert full > 100_000
    assert travel.sent < 1500  # a commit, a tree, and some bytes of the file: not the file
    assert contents(travel.workspace) == contents(repo)


def test_no_history_is_sent(repo: Path, travel: Travel, tmp_path: Path) -> None:
    old = git(repo, "rev-parse", "HEAD")
    (repo / "kept.txt").write_text("second\n")
    new = commit(repo)
    git(repo, "commit-graph", "write", "--reachable")  # has parents too
    travel.go(repo)
    listed = git(tmp_path / "host.git", "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    assert f"{new} commit" in listed
    assert listed.count("commit") == 2, "that of HEAD, and that of the tree"
    assert old not in listed


@pytest.mark.parametrize("arguments", [{"rev": "nope"}, {"base": "nope"}])
def test_an_unknown_revision_or_base_is_an_error(repo: Path, travel: Travel, arguments: dict[str, str]) -> None:
    with pytest.raises(CheckoutError, match="has no revision 'nope'"):
        travel.take(repo, **arguments)


# Repositories of every kind


def test_a_shallow_clone(repo: Path, tmp_path: Path, travel: Travel) -> None:
    repositories.modified(repo)
    commit(repo)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    for text in ("one\n", "two\n"):
        (tmp_path / "shallow/new.txt").write_text(text)
        travel.go(tmp_path / "shallow")
        assert contents(travel.workspace) == contents(tmp_path / "shallow")


def _partial(repo: Path, tmp_path: Path, *extra: str) -> Path:
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", *extra, f"file://{repo}", "partial")
    return tmp_path / "partial"


def _sparse_and_partial(repo: Path, tmp_path: Path) -> Path:
    partial = _partial(repo, tmp_path, "--no-checkout")
    git(partial, "sparse-checkout", "set", "--no-cone", "/kept.txt")
    git(partial, "checkout", "-q", "main")
    return partial


def test_a_partial_clone_with_its_files_travels(repo: Path, tmp_path: Path, travel: Travel) -> None:
    partial = _partial(repo, tmp_path)
    (partial / "kept.txt").write_text("changed\n")
    travel.go(partial)
    assert contents(travel.workspace) == {**contents(repo), b"kept.txt": b"changed\n"}


@pytest.mark.parametrize(("make", "rev"), [(_sparse_and_partial, None), (_partial, "HEAD^")])
def test_what_a_partial_clone_lacks_is_an_error_that_says_what_to_type_and_nothing_is_fetched(
    repo: Path, tmp_path: Path, travel: Travel, make: Callable[[Path, Path], Path], rev: str | None
) -> None:
    (repo / "kept.txt").write_text("second\n")
    commit(repo)
    partial = make(repo, tmp_path)
    with untouched(partial), pytest.raises(CheckoutError, match="is a partial clone that lacks files") as caught:
        travel.take(partial, rev=rev)
    hint = re.search(r"`(git -C .* fetch .*)`", caught.value.hint)
    assert hint
    subprocess.run(hint[1], shell=True, check=True, capture_output=True)
    travel.go(partial, rev=rev)
    assert (travel.workspace / "kept.txt").read_text() == ("kept\n" if rev else "second\n")


@pytest.mark.parametrize("cone", [["--no-cone", "/kept.txt"], ["--cone", "--sparse-index", "other"]])
def test_a_sparse_checkout_gives_the_whole_commit(repo: Path, travel: Travel, cone: list[str]) -> None:
    (repo / "other").mkdir()
    (repo / "other/file.txt").write_text("other\n")
    commit(repo)
    git(repo, "sparse-checkout", "set", *cone)
    assert not (repo / "sub").exists()
    (repo / "kept.txt").write_text("changed\n")
    snapshot = travel.go(repo)
    assert (travel.workspace / "sub/inner.txt").read_text() == "inner\n"
    assert snapshot.checkout.dirty == ("kept.txt",)


def test_a_repository_with_sha256_names(tmp_path: Path, travel: Travel) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "repo")
    (tmp_path / "repo/a.txt").write_text("a\n")
    travel.host = TreeStore(str(tmp_path / "host.git"), "sha256")
    for text in ("b\n", "c\n"):
        (tmp_path / "repo/b.txt").write_text(text)
        snapshot = travel.go(tmp_path / "repo")
        assert len(snapshot.checkout.tree) == 64
        assert contents(travel.workspace) == contents(tmp_path / "repo")


def test_another_kind_of_repository_in_the_checkouts_place(repo: Path, tmp_path: Path, travel: Travel) -> None:
    travel.go(repo)
    os.rename(repo, tmp_path / "old")
    git(tmp_path, "init", "-q", "--object-format=sha256", "repo")
    (repo / "a.txt").write_text("a\n")
    travel.host = TreeStore(str(tmp_path / "another.git"), "sha256")
    assert len(travel.go(repo).checkout.tree) == 64


def test_objects_that_the_repository_itself_borrows(repo: Path, tmp_path: Path, travel: Travel) -> None:
    """Also by a relative path, which git follows in one repository and not from another."""
    git(tmp_path, "clone", "-q", "--shared", str(repo), "borrower")
    for alternates in (f"{repo}/.git/objects\n", "../../../repo/.git/objects\n"):
        (tmp_path / "borrower/.git/objects/info/alternates").write_text(alternates)
        (tmp_path / "borrower/new.txt").write_text(alternates)
        travel.go(tmp_path / "borrower")
        assert contents(travel.workspace) == contents(tmp_path / "borrower")


def test_a_replaced_commit_is_what_it_is_and_not_what_it_was_replaced_with(repo: Path, travel: Travel) -> None:
    first = git(repo, "rev-parse", "HEAD")
    repositories.modified(repo)
    second = commit(repo)
    git(repo, "replace", second, first)
    snapshot = travel.go(repo)
    assert (snapshot.checkout.commit, snapshot.checkout.dirty) == (second, ())
    assert (travel.workspace / "kept.txt").read_text() == "changed\n"


def test_a_directory_of_a_repository(part: Path, repo: Path, travel: Travel) -> None:
    (repo / "kept.txt").write_text("changed above\n")
    for text in ("one\n", "two\n"):
        (part / "a.txt").write_text(text)
        with untouched(repo):
            snapshot = travel.go(part)
        assert snapshot.checkout.dirty == ("a.txt",)
        assert contents(travel.workspace) == contents(part)


def test_a_directory_without_git(tmp_path: Path, travel: Travel) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/.gitignore").write_text("*.log\n")
    (tmp_path / "plain/x.log").write_text("ignored\n")
    for text in ("one\n", "two\n"):
        (tmp_path / "plain/a.txt").write_text(text)
        travel.go(tmp_path / "plain")
        assert contents(travel.workspace) == {b".gitignore": b"*.log\n", b"a.txt": text.encode()}


def test_a_store_inside_the_checkout_is_no_part_of_it(repo: Path, travel: Travel) -> None:
    travel.client = repo / "out[1]/store"
    for _ in range(2):
        assert take_snapshot(repo, travel.client).checkout.dirty == ()


# Submodules


def test_submodules_travel_with_what_is_edited_inside(with_submodule: Path, travel: Travel) -> None:
    make_repo(with_submodule / "third party/nested")
    for text in ("one\n", "two\n"):
        (with_submodule / "third party/kept.txt").write_text(text)
        (with_submodule / "third party/nested/new.txt").write_text(text)
        snapshot = travel.go(with_submodule)
        assert [part.path for part in snapshot.parts] == ["", "third party", "third party/nested"]
        assert contents(travel.workspace) == contents(with_submodule)
        assert git(travel.workspace / "third party", "rev-parse", "HEAD^{tree}") == snapshot.parts[1].tree


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside", "third", "kept.txt", "link", ".git", "third party/"])
def test_a_part_goes_nowhere_but_to_its_submodule(
    with_submodule: Path, travel: Travel, tmp_path: Path, path: str
) -> None:
    (with_submodule / "link").symlink_to(tmp_path)
    snapshot = travel.take(with_submodule)
    travel.send(snapshot, [])
    top, inside = parts_of(snapshot)
    with pytest.raises(StoreError, match="is not a submodule at"):
        travel.host.check_out([top, replace(inside, path=path)], str(travel.workspace))
    assert not travel.workspace.exists()
    assert not (tmp_path / ".git").exists() and not (tmp_path / "outside").exists()


def test_files_of_a_submodule_that_did_not_change_are_not_written_again(
    with_submodule: Path, travel: Travel, tmp_path: Path
) -> None:
    """Also where the job has changed its repository."""
    inodes = []
    for text in ("one\n", "two\n"):
        (with_submodule / "third party/new.txt").write_text(text)
        snapshot = travel.take(with_submodule)
        travel.send(snapshot, [])
        run = tmp_path / f"run-{text.strip()}"
        idle = IdleWorkspaces(str(tmp_path / "pool"), key_of("here"), str(run / "note"))
        travel.host.check_out(parts_of(snapshot), str(run / "workspace"), idle)
        assert contents(run / "workspace") == contents(with_submodule)
        assert git(run / "workspace", "status", "--porcelain") == ""
        inodes.append((run / "workspace/third party/kept.txt").stat().st_ino)
        git(run / "workspace/third party", "config", "core.fsmonitor", f"touch {tmp_path}/ran")
        release(str(run / "workspace"), str(run / "note"))
    assert inodes[0] == inodes[1]
    assert not (tmp_path / "ran").exists()


# Reading a snapshot


def test_files_of_a_snapshot_can_be_read_without_a_clone(with_submodule: Path, travel: Travel) -> None:
    (with_submodule / "third party/new.txt").write_text("inside\n")
    (with_submodule / "link").symlink_to("sub/inner.txt")
    (with_submodule / "to-dir").symlink_to("sub")
    (with_submodule / "outside").symlink_to("/etc/passwd")
    (with_submodule / "new\nline").write_text("odd\n")
    (with_submodule / "empty").touch()
    snapshot = travel.take(with_submodule)
    (with_submodule / "kept.txt").write_text("edited afterwards\n")
    names = {
        name: snapshot.read(name)
        for name in (
            *("kept.txt", "sub/inner.txt", "third party/new.txt", "link", "to-dir/inner.txt", "new\nline", "empty"),
            *("outside", "nothing", "sub", "third party", "third party/nothing", "no\nthing", "", "../x"),
        )
    }
    assert {name: content for name, content in names.items() if content is not None} == {
        "kept.txt": b"kept\n",
        "sub/inner.txt": b"inner\n",
        "third party/new.txt": b"inside\n",
        "link": b"inner\n",
        "to-dir/inner.txt": b"inner\n",
        "new\nline": b"odd\n",
        "empty": b"",
    }


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("", "inner.txt", ["sub/inner.txt", "third party/sub/inner.txt"]),
        ("sub/", "", ["sub/inner.txt"]),
        ("third party/k", ".txt", ["third party/kept.txt"]),
        ("th", "kept.txt", ["third party/kept.txt"]),
        ("nowhere/", ".txt", []),
    ],
)
def test_names_of_a_snapshot(
    with_submodule: Path, travel: Travel, prefix: str, suffix: str, expected: list[str]
) -> None:
    assert travel.take(with_submodule).names(prefix, suffix) == expected


# What the host does not have, and what is gone here


def test_a_base_that_the_host_lacks_is_said_and_everything_will_do(repo: Path, tmp_path: Path, travel: Travel) -> None:
    (repo / "large.txt").write_text("".join(f"{number}\n" for number in range(5000)))
    travel.go(repo)
    with open(repo / "large.txt", "a") as out:
        out.write("edited\n")
    snapshot = travel.take(repo)
    travel.host = TreeStore(str(tmp_path / "another.git"))
    with pytest.raises(MissingBase):
        travel.send(snapshot, travel.have(snapshot))
    travel.send(snapshot, [])
    travel.check_out(snapshot)
    assert contents(travel.workspace) == contents(repo)


def _pack_without(part: SnapshotPart, name: str) -> list[bytes]:
    """As if the host had said that it has the file."""
    listing = ["git", "pack-objects", "--stdout", "--revs", "-q"]
    revisions = f"--shallow {part.commit}\n{part.commit}\n^{part.commit}:{name}\n"
    return [subprocess.run(listing, cwd=part.store, input=revisions.encode(), capture_output=True, check=True).stdout]


def test_a_host_without_what_did_not_change_says_so_when_it_checks_out(repo: Path, travel: Travel) -> None:
    """What did not change is no base of anything that is sent."""
    snapshot = travel.take(repo)
    travel.host.receive(_pack_without(snapshot.parts[0], "kept.txt"))
    with pytest.raises(MissingBase):
        travel.check_out(snapshot)
    assert travel.host.commits() == []
    travel.send(snapshot, [])
    travel.check_out(snapshot)
    assert contents(travel.workspace) == contents(repo)


@pytest.mark.parametrize("have", [["0" * 40], ["--all", "", "HEAD"]])
def test_trees_that_are_not_here_do_not_matter(repo: Path, travel: Travel, have: list[str]) -> None:
    snapshot = travel.take(repo)
    travel.send(snapshot, have)
    travel.check_out(snapshot)


@pytest.mark.parametrize("removed", ["big", "big/file.txt"])
def test_a_base_of_which_the_user_has_thrown_away_a_part_does_not_matter(
    repo: Path, travel: Travel, removed: str
) -> None:
    (repo / "big").mkdir()
    (repo / "big/file.txt").write_text("x" * 5000)
    commit(repo)
    travel.go(repo)
    name = git(repo, "rev-parse", f"HEAD:{removed}")
    git(repo, "rm", "-q", "-r", "big")
    commit(repo)
    (repo / ".git/objects" / name[:2] / name[2:]).unlink()
    travel.go(repo)
    (repo / "big").mkdir()
    (repo / "big/file.txt").write_text("x" * 5000 + "y")
    travel.go(repo)
    assert contents(travel.workspace) == contents(repo)


# Several at once


def test_two_commands_and_two_runs_at_once(repo: Path, tmp_path: Path, travel: Travel) -> None:
    for number in range(50):
        (repo / f"untracked{number}.txt").write_text(f"{number}\n")
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            mine = Travel(tmp_path)
            for round in range(3):
                snapshot = take_snapshot(repo, mine.client)
                mine.send(snapshot, mine.have(snapshot))
                mine.check_out(snapshot, tmp_path / f"w{number}-{round}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    with untouched(repo):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all(contents(tmp_path / f"w{number}-2") == contents(repo) for number in range(4))


def test_a_killed_command_leaves_a_store_that_works(repo: Path, travel: Travel) -> None:
    travel.go(repo)
    for index in travel.client.glob("index-*"):
        index.with_name(f"{index.name}.lock").touch()
    (travel.client / "HEAD").unlink()
    (travel.client / "config").write_text("")
    repositories.modified(repo)
    travel.go(repo)
    assert contents(travel.workspace) == contents(repo)


def test_a_pack_whose_reader_goes_away_leaves_no_git_behind(repo: Path, travel: Travel) -> None:
    (repo / "large.bin").write_bytes(os.urandom(4 << 20))
    pack = thin_pack(travel.take(repo), [])
    next(pack)
    pack.close()  # type: ignore[attr-defined]
    children = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    assert "pack-objects" not in children.stdout
