"""A workspace that a job has used becomes the next run's: exactly its tree, and nothing that the job has left."""

# mypy: disable-error-code="func-returns-value"
# The tables below are of things to do; several stand in a tuple, whose values are not read.

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ci_tasks.agent import workspace
from ci_tasks.agent.git import DiskFull, Git, StoreError
from ci_tasks.agent.records import CheckoutPart, Retry
from ci_tasks.agent.workspace import NotKept
from ci_tasks.checkout.snapshot import take_snapshot
from tests.agent.trees.support import Host, git

CRLF = "a file that a commit would convert back"
FILES = {
    ".gitattributes": "unix.txt eol=crlf\nauto text=auto\n",
    "unix.txt": "u\n",
    "auto": "a\n",
    "a": "a\n",
    "b": "b\n",
    "run.sh": "#!/bin/sh\n",
    "deep/er/c": "c\n",
    ".gitignore": "*.pyc\n__pycache__\n",
}


def new_host(path: Path) -> Host:
    host = Host(path)
    host.commit(**FILES)
    (host.source / "run.sh").chmod(0o755)
    (host.source / "link").symlink_to("a")
    (path / "outside").mkdir()
    (path / "outside/file").write_text("theirs\n")
    return host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return new_host(tmp_path / "host")


class Sent(NamedTuple):
    """`fresh` is what a fresh checkout of `new` is."""

    host: Host
    old: CheckoutPart
    new: CheckoutPart
    fresh: dict[str, object]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    host = new_host(tmp_path_factory.mktemp("sent") / "host")
    old, new = host.send(), host.send(a="changed\n")
    return Sent(host, old, new, state_of(host.start(new)))


def state_of(workspace: Path) -> dict[str, object]:
    """What a job can see of it, but for times and git's own packs and index."""
    seen: dict[str, object] = {}
    for path in sorted(workspace.rglob("*")):
        name = str(path.relative_to(workspace))
        if not name.startswith((".git/objects", ".git/index", ".git/logs")):
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            info = path.lstat()
            links = 1 if path.is_dir() else info.st_nlink
            attributes = os.listxattr(path, follow_symlinks=False)
            seen[name] = (oct(info.st_mode), info.st_uid, info.st_gid, links, attributes, content)
    return seen


def test_only_what_changed_is_written(host: Host) -> None:
    """Neither a file that the job has changed nor one that git converts makes the others be written."""
    first = host.start(host.send())
    (first / "a").write_text("x\n")
    before = {name: (first / name).lstat().st_ino for name in os.listdir(first) if name not in ("a", "b")}
    host.end(first)
    (host.source / "deep/er/c").unlink()
    second = host.start(host.send(b="other\n", new="new\n"))
    names = {name for name in os.listdir(second) if (second / name).is_file()}
    assert {name for name in names if (second / name).lstat().st_ino != before.get(name)} == {"a", "b", "new"}
    assert not (second / "deep").exists()
    assert git(second, "status", "--porcelain") == ""
    assert host.idle == []


def test_of_many_files_an_older_one_is_recorded_and_another_one_is_not_proven(host: Host) -> None:
    made = host.start(part := host.send(**{f"many/{number}": "x\n" for number in range(2100)}))
    other = shutil.copytree(host.source, host.path / "other")
    for top in (other, made):
        (top / "many/7").write_text("y\n")
    time.sleep(0.1)
    trees = [take_snapshot(host.source, host.path / "recorded").flat]
    host.source.rename(host.path / "before"), other.rename(host.source)
    trees.append(take_snapshot(host.source, host.path / "recorded").flat)
    assert trees == [part.tree, host.commit().tree] and trees[0] != trees[1]
    names = [path.encode() for path in git(host.source, "ls-files", "-z").split("\0")[:-1]]
    with pytest.raises(StoreError, match="is not the tree"):
        workspace._prove(Git(host.store.path, made), str(host.path / "index"), names, part.tree, keep_files=True)


def test_one_of_no_run_has_nothing_beside_it(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    workspace.check_out(host.store.path, [host.send()], str(tmp_path / "new"), lambda part, git_dir: None)
    assert sorted(os.listdir(tmp_path)) == ["host", "new"]


def _resting(path: Path, change: Callable[[], object]) -> None:
    """With the times that it had."""
    info = path.stat()
    change()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _configure(w: Path) -> None:
    (w / ".git/config").write_text(
        '[core]\n\tfsmonitor = touch ../../../ran\n[filter "x"]\n\tsmudge = touch ../../../ran\n'
    )
    (w / ".git/info").mkdir(exist_ok=True)
    (w / ".git/info/attributes").write_text("* filter=x\n")


def _hook(w: Path) -> None:
    (w / ".git/hooks").mkdir(exist_ok=True)
    (w / ".git/hooks/post-checkout").write_text("#!/bin/sh\ntouch ../../../ran\n")
    (w / ".git/hooks/post-checkout").chmod(0o755)


def _flag(w: Path) -> None:
    git(w, "update-index", "--assume-unchanged", "b")
    (w / "b").write_text("x\n")


def _directory_for_file(w: Path) -> None:
    (w / "b").unlink()
    (w / "b/inner").mkdir(parents=True)


def _link_for_directory(w: Path) -> None:
    (w / "deep/er/c").unlink()
    (w / "deep/er").rmdir()
    (w / "deep/er").symlink_to(w.parent.parent.parent / "outside")


def _future(w: Path) -> None:
    (w / "b").write_text("x\n")
    os.utime(w / "b", (time.time() + 10_000, time.time() + 10_000))


def _unreadable(w: Path) -> None:
    (w / "deep/er/made/in").mkdir(parents=True)
    for path in (w / "deep/er/made/in", w / "deep/er/made", w / "deep/er", w / "deep"):
        path.chmod(0)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


LEFT: dict[str, Callable[[Path], object]] = {
    "nothing": lambda w: None,
    "an ignored file beside tracked ones": lambda w: (w / "deep/made.pyc").write_text("x"),
    "a pipe": lambda w: os.mkfifo(w / "deep/pipe"),
    "an extended attribute": lambda w: os.setxattr(w / "b", "user.x", b"x"),
    "an extended attribute of a directory": lambda w: os.setxattr(w / "deep", "user.x", b"x"),
    "a file that a checkout would convert": lambda w: (w / "unix.txt").write_bytes(b"u\n"),
    CRLF: lambda w: (w / "auto").write_bytes(b"a\r\n"),
    "a link to elsewhere": lambda w: (w / "made").symlink_to(w.parent.parent.parent / "outside"),
    "other content of the same size and time": lambda w: _resting(w / "b", lambda: (w / "b").write_text("x\n")),
    "other content from the future": _future,
    "a mode": lambda w: (w / "b").chmod(0o666),
    "a missing executable bit": lambda w: (w / "run.sh").chmod(0o644),
    "a removed file": lambda w: (w / "b").unlink(),
    "a hard link to elsewhere": lambda w: os.link(w / "b", w.parent / "linked"),
    "a link in the place of a file": lambda w: _link(w / "b", "../../../outside/file"),
    "a link in the place of a directory": _link_for_directory,
    "a directory in the place of a file": _directory_for_file,
    "another target of a link": lambda w: _link(w / "link", "b"),
    "directories that nobody may read": _unreadable,
    "a directory that all may write": lambda w: (w / "deep").chmod(0o1777),
    "settings and filters of git": _configure,
    "a hook": _hook,
    "a file in the place of .git": lambda w: ((w / ".git").rename(w / "git"), (w / ".git").write_text("gitdir: git\n")),
    "assume-unchanged": _flag,
    "another index": lambda w: (w / ".git/index").write_bytes(b"x"),
}


@pytest.mark.parametrize("left", LEFT)
def test_whatever_a_job_leaves_the_next_workspace_is_as_a_fresh_one(sent: Sent, left: str) -> None:
    host = sent.host
    first = host.start(sent.old)
    LEFT[left](first)
    host.end(first)
    assert len(host.idle) == 1
    second = host.start(sent.new)
    assert host.idle == [], "it was taken"
    assert state_of(second) == sent.fresh
    assert git(second, "status", "--porcelain", "--ignored") == ""
    assert {line[0] for line in git(second, "ls-files", "-v").splitlines()} == {"H"}
    assert not (host.path / "ran").exists()
    assert (host.path / "outside/file").read_text() == "theirs\n"


IDLE = ["a link in the place of a directory", "other content of the same size and time", "a hard link to elsewhere"]
IDLE += ["an extended attribute", "a mode", CRLF]


@pytest.mark.parametrize("left", IDLE)
def test_what_changes_while_it_is_idle_counts_as_little(sent: Sent, left: str) -> None:
    """A process of the account may do it."""
    sent.host.end(sent.host.start(sent.old))
    LEFT[left](sent.host.idle[0] / "workspace")
    assert state_of(sent.host.start(sent.new)) == sent.fresh


def test_a_link_in_the_place_of_an_idle_one_is_not_followed(sent: Sent) -> None:
    sent.host.end(sent.host.start(sent.old))
    (slot,) = sent.host.idle
    shutil.rmtree(slot / "workspace")
    (slot / "workspace").symlink_to(sent.host.source)
    second = sent.host.start(sent.new)
    assert state_of(second) == sent.fresh
    assert (sent.host.source / ".git/HEAD").exists()


def test_one_in_which_a_file_system_is_mounted_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    part = host.send()
    first, second = host.start(part), host.start(part)
    host.end(first)
    for directory in (second, host.idle[0] / "workspace"):
        (directory / "deep/mounted").touch()  # stands for a mount
    monkeypatch.setattr(workspace, "mounted_below", lambda path: [*Path(path).rglob("mounted")])
    with pytest.raises(StoreError, match="differs from a new directory"):
        host.end(second)
    fresh = host.start(part)
    workspace.prune(str(host.pool), time.time() + 100)
    assert (second / "deep/mounted").exists() and not (fresh / "deep/mounted").exists()
    assert [path.parts[-4] for path in host.pool.rglob("mounted") if path.parts[-4].startswith("removed-")]


@pytest.mark.parametrize("index", [b"x", None], ids=["something else", "none"])
def test_what_cannot_be_used_is_replaced_by_a_fresh_checkout(sent: Sent, index: bytes | None) -> None:
    sent.host.end(sent.host.start(sent.old))
    at = sent.host.idle[0] / "index"
    at.unlink() if index is None else at.write_bytes(index)
    assert state_of(sent.host.start(sent.new)) == sent.fresh
    assert sent.host.idle == []


def test_a_full_disk_is_freed_of_idle_ones_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    part, write = host.send(), workspace.write_workspace
    host.end(host.start(part))

    def full(*words: Any) -> None:
        if host.idle:
            raise DiskFull("/")
        write(*words)

    monkeypatch.setattr(workspace, "write_workspace", full)
    host.store.check_out([part], str(host.path / "runs/x/workspace"), "/another")
    assert (host.path / "runs/x/workspace/b").read_text() == "b\n"


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_no_workspace_any_more_is_no_idle_one(host: Host, is_link: bool) -> None:
    made = host.start(host.send())
    made.rename(made.parent / "x")
    if is_link:
        made.symlink_to("x")
    with pytest.raises((StoreError, OSError)):
        host.end(made)
    assert host.idle == []
    workspace.forget(str(made))
    assert os.listdir(host.pool) == []


def test_one_workspace_is_for_one_run_of_its_checkout(host: Host) -> None:
    part = host.send()
    host.end(first := host.start(part))
    inode = (first.parent.parent.parent / host.idle[0] / "workspace/b").stat().st_ino
    host.store.check_out([part], str(host.path / "runs/verl/workspace"), "/home/me/verl")
    assert len(host.idle) == 1
    inodes = [(host.start(part) / "b").stat().st_ino for _ in range(2)]
    assert inodes[0] == inode != inodes[1]


def test_two_stay_the_newest_and_unused_ones_go(host: Host) -> None:
    part = host.send()
    started = [host.start(part) for _ in range(4)]
    for number, each in enumerate(started):
        host.end(each)
        assert len(host.idle) == min(number + 1, 2)
    assert not workspace.prune(str(host.pool), time.time() - 100)
    assert len(host.idle) == 2
    assert workspace.prune(str(host.pool), time.time() + 100)
    assert os.listdir(host.pool) == []


# Submodules, and a workspace that a failed run has kept


def with_submodule(host: Host, text: str) -> list[CheckoutPart]:
    """The checkout, and one in `sub`, whose file has the text."""
    blob = git(host.source, "hash-object", "-w", "--stdin", input=text).strip()

    def made(*entries: str) -> tuple[str, str]:
        tree = git(host.source, "mktree", "--missing", input="".join(f"{entry}\n" for entry in entries)).strip()
        return git(host.source, "commit-tree", tree, "-m", "x").strip(), tree

    inner = CheckoutPart("sub", *made(f"100644 blob {blob}\tfile"))
    flat = CheckoutPart("", *made(f"100644 blob {blob}\tfile", f"040000 tree {inner.tree}\tsub"))
    top = CheckoutPart("", *made(f"100644 blob {blob}\tfile", f"160000 commit {inner.commit}\tsub"), flat.tree)
    for part in (flat, inner, top):
        host.receive(host.pack(part))
    return [top, inner]


@pytest.mark.parametrize("path", ["../outside", "ABSOLUTE"])
def test_a_part_goes_nowhere_outside_of_its_workspace(host: Host, tmp_path: Path, path: str) -> None:
    top, inner = with_submodule(host, "x\n")
    outside = tmp_path / "outside"
    with pytest.raises(StoreError, match="leads elsewhere"):
        host.start(top, replace(inner, path=path.replace("ABSOLUTE", str(outside))))
    host.check_out(top)  # it is no fault of the store
    assert os.listdir(host.path / "runs/1") == [] and not outside.exists()


@pytest.mark.parametrize("other", ["an older commit", "a commit of the same tree"])
def test_a_submodule_at_another_commit_than_the_tree_names_is_refused(host: Host, other: str) -> None:
    _, old = with_submodule(host, "old\n")
    top, inner = with_submodule(host, "new\n")
    again = git(host.source, "commit-tree", inner.tree, "-m", "again").strip()
    host.receive(host.pack(replace(inner, commit=again)))
    wrong = old if other == "an older commit" else replace(inner, commit=again)
    with pytest.raises(StoreError, match=f"names {inner.commit} for sub, not {wrong.commit}"):
        host.start(top, wrong)
    assert os.listdir(host.path / "runs/1") == []


class Kept:
    def __init__(self, host: Host) -> None:
        self.host, self.old = host, with_submodule(host, "old\n")
        self.workspace = host.start(*self.old)
        (self.workspace / "made").write_text("by the job\n")
        self.retry = Retry((str(self.workspace.parent),), 1, self.old[0].commit, self.old[0].flat)

    def update(self, parts: Sequence[CheckoutPart]) -> None:
        self.host.store.update(parts, str(self.workspace), self.retry, str(self.host.path / "runs/retry"))

    @property
    def files(self) -> list[str]:
        return [(self.workspace / name).read_text() for name in ("file", "sub/file", "made")]


@pytest.fixture
def kept(host: Host) -> Kept:
    return Kept(host)


def test_a_kept_workspace_gets_the_new_tree_and_keeps_what_the_job_made(kept: Kept) -> None:
    for text in ("new\n", "newer\n"):
        new = with_submodule(kept.host, text)
        kept.update(new)
        assert kept.files == [text, text, "by the job\n"]
        assert git(kept.workspace, "rev-parse", "HEAD").strip() == new[0].commit
        assert git(kept.workspace, "status", "--porcelain") == "?? made\n"
        assert git(kept.workspace / "sub", "status", "--porcelain") == ""


def test_a_file_that_only_the_job_has_changed_is_an_error_and_one_that_both_changed_is_the_trees(kept: Kept) -> None:
    (kept.workspace / "sub/file").write_text("job\n")
    with pytest.raises(NotKept, match="files of the checkout have changed since: 'sub/file'"):
        kept.update(kept.old)
    kept.update(with_submodule(kept.host, "new\n"))
    assert kept.files[:2] == ["new\n", "new\n"]


def test_a_second_retry_of_a_run_begins_with_the_tree_that_the_first_one_made(kept: Kept) -> None:
    top, inner = with_submodule(kept.host, "new\n")
    listed = git(kept.host.source, "ls-tree", top.flat)
    blob = listed.split()[2]
    flat = git(kept.host.source, "mktree", "--missing", input=f"{listed}100644 blob {blob}\tmore\n").strip()
    tree = git(kept.host.source, "ls-tree", top.tree)
    more = git(kept.host.source, "mktree", "--missing", input=f"{tree}100644 blob {blob}\tmore\n").strip()
    commits = [git(kept.host.source, "commit-tree", each, "-m", "x").strip() for each in (flat, more)]
    kept.host.receive(kept.host.pack(CheckoutPart("", commits[0], flat)))
    part = CheckoutPart("", commits[1], more, flat)
    kept.host.receive(kept.host.pack(part))
    kept.update([part, inner])
    assert (kept.workspace / "more").exists()
    kept.update(kept.old)
    assert not (kept.workspace / "more").exists() and kept.files == ["old\n", "old\n", "by the job\n"]


def test_an_update_that_broke_off_is_not_continued(kept: Kept) -> None:
    new = with_submodule(kept.host, "new\n")
    with pytest.raises(StoreError):
        kept.update([new[0], replace(new[1], commit="1" * 40)])
    for part in new:
        kept.host.receive(kept.host.pack(part))
    with pytest.raises(NotKept, match="was interrupted"):
        kept.update(new)


def _link_for_submodule(w: Path) -> None:
    (w / "sub").rename(w.parent / "outside")
    (w / "sub").symlink_to(w.parent / "outside")


@pytest.mark.parametrize(
    "left",
    [
        _link_for_submodule,
        _configure,
        _hook,
        lambda w: (w / ".git/objects/info/alternates").write_text("/tmp\n"),
        lambda w: (shutil.rmtree(w / ".git/objects"), (w / ".git/objects").symlink_to(w.parent)),
    ],
)
def test_nothing_outside_a_kept_workspace_changes_or_is_executed(kept: Kept, left: Callable[[Path], object]) -> None:
    before = sorted(path for path in kept.host.path.rglob("outside*"))
    left(kept.workspace)
    kept.update(with_submodule(kept.host, "new\n"))
    assert kept.files[:2] == ["new\n", "new\n"]
    assert not (kept.host.path / "ran").exists() and (kept.host.path / "outside/file").read_text() == "theirs\n"
    if (kept.workspace.parent / "outside").exists():
        assert (kept.workspace.parent / "outside/file").read_text() == "old\n"
    assert before


def test_files_of_a_submodule_that_did_not_change_are_not_written_again(host: Host) -> None:
    inodes = []
    for parts in [with_submodule(host, "x\n")] * 2:
        workspace = host.start(*parts)
        inodes.append((workspace / "sub/file").stat().st_ino)
        git(workspace / "sub", "config", "core.fsmonitor", f"touch {host.path}/ran")
        host.end(workspace)
    assert inodes[0] == inodes[1]
    assert not (host.path / "ran").exists()
