"""A workspace that a job has used becomes the next run's: exactly its tree, and nothing that the job has left."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ci_tasks.agent import directories
from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees import idle_workspaces
from ci_tasks.agent.trees.git import DiskFull, StoreError
from ci_tasks.agent.trees.idle_workspaces import IdleWorkspaces, key_of, release
from ci_tasks.agent.trees.store import TreeStore

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


def git(directory: Path, *argv: str, input: str | None = None) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always", *argv]
    done = subprocess.run(command, cwd=directory, input=input, text=True, capture_output=True, check=True)
    return done.stdout.strip()


class Host:
    """A store, the directories of runs, and a person who sends trees."""

    def __init__(self, path: Path) -> None:
        self.path, self.source, self.pool, self.runs = path, path / "source", path / "workspaces", 0
        self.store = TreeStore(str(path / "store.git"), lock_timeout=10)
        self.source.mkdir(parents=True)
        git(self.source, "init", "-q")
        for name, text in FILES.items():
            self.write(name, text)
        (self.source / "run.sh").chmod(0o755)
        (self.source / "link").symlink_to("a")
        (path / "outside").mkdir()
        (path / "outside/file").write_text("theirs\n")

    def write(self, name: str, text: str) -> None:
        (self.source / name).parent.mkdir(parents=True, exist_ok=True)
        (self.source / name).write_text(text)

    def send(self, directory: Path | None = None, path: str = "") -> CheckoutPart:
        directory = directory or self.source
        git(directory, "add", "--all")
        git(directory, "commit", "-q", "--allow-empty", "-m", "x")
        words = ["pack-objects", "--stdout", "--revs", "-q"]
        pack = subprocess.run(["git", *words], cwd=directory, input=b"HEAD\n", capture_output=True, check=True).stdout
        self.store.receive([pack])
        return CheckoutPart(path, *git(directory, "rev-parse", "HEAD", "HEAD^{tree}").split())

    def start(self, *parts: CheckoutPart) -> Path:
        """The workspace of a new run."""
        self.runs += 1
        run = self.path / f"run-{self.runs}"
        self.store.check_out(parts, str(run / "workspace"), self.workspaces(str(run / "note")))
        return run / "workspace"

    def end(self, workspace: Path) -> None:
        release(str(workspace), str(workspace.parent / "note"))

    def workspaces(self, note: str = "") -> IdleWorkspaces:
        return IdleWorkspaces(str(self.pool), key_of("/home/me/slime"), note)

    @property
    def idle(self) -> list[str]:
        return [str(path.parent) for path in self.pool.glob("*/workspace")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


class Sent(NamedTuple):
    """`fresh` is what a fresh checkout of `new` is."""

    host: Host
    old: CheckoutPart
    new: CheckoutPart
    fresh: dict[str, object]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    host = Host(tmp_path_factory.mktemp("sent") / "host")
    old = host.send()
    host.write("a", "changed\n")
    new = host.send()
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
    host.write("b", "other\n")
    host.write("new", "new\n")
    (host.source / "deep/er/c").unlink()
    part = host.send()
    second = host.start(part)
    names = {name for name in os.listdir(second) if (second / name).is_file()}
    assert {name for name in names if (second / name).lstat().st_ino != before.get(name)} == {"a", "b", "new"}
    assert not (second / "deep").exists()
    assert git(second, "status", "--porcelain") == ""
    assert host.idle == []


def _resting(path: Path, change: Callable[[], object]) -> None:
    """With the times that it had."""
    info = path.stat()
    change()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _configure(w: Path) -> None:
    (w / ".git/config").write_text('[core]\n\tfsmonitor = touch ../../ran\n[filter "x"]\n\tsmudge = touch ../../ran\n')
    (w / ".git/info").mkdir(exist_ok=True)
    (w / ".git/info/attributes").write_text("* filter=x\n")


def _hook(w: Path) -> None:
    (w / ".git/hooks").mkdir(exist_ok=True)
    (w / ".git/hooks/post-checkout").write_text("#!/bin/sh\ntouch ../../ran\n")
    (w / ".git/hooks/post-checkout").chmod(0o755)


def _flag(flag: str) -> Callable[[Path], object]:
    def job(w: Path) -> None:
        git(w, "update-index", flag, "b")
        (w / "b").write_text("x\n")

    return job


def _directory_for_file(w: Path) -> None:
    (w / "b").unlink()
    (w / "b/inner").mkdir(parents=True)


def _link_for_directory(w: Path) -> None:
    (w / "deep/er/c").unlink()
    (w / "deep/er").rmdir()
    (w / "deep/er").symlink_to(w.parent.parent / "outside")


def _future(w: Path) -> None:
    (w / "b").write_text("x\n")
    os.utime(w / "b", (time.time() + 10_000, time.time() + 10_000))


def _unreadable(w: Path) -> None:
    (w / "deep/er/made/in").mkdir(parents=True)
    for path in (w / "deep/er/made/in", w / "deep/er/made", w / "deep/er", w / "deep"):
        path.chmod(0)


def _pycache(w: Path) -> None:
    (w / "__pycache__").mkdir()
    (w / "__pycache__/a.pyc").write_text("x")


def _socket(w: Path) -> None:
    (w / "b").unlink()
    os.mknod(w / "b", stat.S_IFSOCK | 0o644)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


LEFT: dict[str, Callable[[Path], object]] = {
    "nothing": lambda w: None,
    "an untracked file": lambda w: (w / "made").write_text("x"),
    "an ignored __pycache__": _pycache,
    "a sitecustomize beside tracked files": lambda w: (w / "deep/sitecustomize.py").write_text("x"),
    "a pipe": lambda w: os.mkfifo(w / "deep/pipe"),
    "a socket in the place of a file": _socket,
    "an extended attribute": lambda w: os.setxattr(w / "b", "user.x", b"x"),
    "an extended attribute of a directory": lambda w: os.setxattr(w / "deep", "user.x", b"x"),
    "a file that a checkout would convert": lambda w: (w / "unix.txt").write_bytes(b"u\n"),
    CRLF: lambda w: (w / "auto").write_bytes(b"a\r\n"),
    "a set-user-id bit": lambda w: (w / "run.sh").chmod(0o4755),
    "a link to elsewhere": lambda w: (w / "made").symlink_to(w.parent.parent / "outside"),
    "other content of the same size and time": lambda w: _resting(w / "b", lambda: (w / "b").write_text("x\n")),
    "other content from the future": _future,
    "an added line end": lambda w: (w / "b").write_bytes(b"b\r\n"),
    "a mode": lambda w: (w / "b").chmod(0o666),
    "an executable bit": lambda w: (w / "b").chmod(0o755),
    "a missing executable bit": lambda w: (w / "run.sh").chmod(0o644),
    "a removed file": lambda w: (w / "b").unlink(),
    "a hard link to elsewhere": lambda w: os.link(w / "b", w.parent.parent / f"linked-{w.name}"),
    "a link in the place of a file": lambda w: _link(w / "b", "../../outside/file"),
    "a link in the place of a directory": _link_for_directory,
    "a directory in the place of a file": _directory_for_file,
    "another target of a link": lambda w: _link(w / "link", "b"),
    "directories that nobody may read": _unreadable,
    "a directory that all may write": lambda w: (w / "deep").chmod(0o1777),
    "settings and filters of git": _configure,
    "a hook": _hook,
    "a file in the place of .git": lambda w: ((w / ".git").rename(w / "git"), (w / ".git").write_text("gitdir: git\n")),
    "attributes that nobody tracks": lambda w: (w / "deep/.gitattributes").write_text("* eol=crlf\n"),
    "assume-unchanged": _flag("--assume-unchanged"),
    "skip-worktree": _flag("--skip-worktree"),
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
    LEFT[left](Path(sent.host.idle[0], "workspace"))
    assert state_of(sent.host.start(sent.new)) == sent.fresh


def test_a_link_in_the_place_of_an_idle_one_is_not_followed(sent: Sent) -> None:
    sent.host.end(sent.host.start(sent.old))
    (slot,) = sent.host.idle
    shutil.rmtree(Path(slot, "workspace"))
    Path(slot, "workspace").symlink_to(sent.host.source)
    second = sent.host.start(sent.new)
    shutil.rmtree(slot)
    assert state_of(second) == sent.fresh
    assert (sent.host.source / ".git/HEAD").exists()


@pytest.mark.parametrize("use", ["a process in it", "a file that is open", "a mount in a container"])
def test_one_that_somebody_uses_is_no_idle_one(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use: str
) -> None:
    workspace = sent.host.start(sent.old)
    with contextlib.ExitStack() as stack:
        if use == "a mount in a container":
            (tmp_path / "1/fd").mkdir(parents=True)
            tail = "/".join(workspace.parts[-3:])
            (tmp_path / "1/mountinfo").write_text(f"1 0 0:1 / / rw - x\n2 1 0:1 /other/{tail}/deep /x rw - x x x\n")
            monkeypatch.setattr(idle_workspaces, "_PROC", str(tmp_path))
        elif use == "a process in it":
            monkeypatch.chdir(workspace / "deep")
        else:
            stack.enter_context((workspace / "b").open())
        with pytest.raises(StoreError, match="a process uses it"):
            sent.host.end(workspace)


@pytest.mark.parametrize("when", ["before it is idle", "while it is idle"])
def test_one_in_which_a_file_system_is_mounted_is_left_alone(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    workspace = host.start(part := host.send())
    if when == "while it is idle":
        host.end(workspace)
        workspace = Path(host.idle[0], "workspace")
    (tmp_path / "mounts").write_text(f"1 0 0:1 / {workspace.resolve()}/deep rw - x x x\n")
    monkeypatch.setattr(directories, "_MOUNTS", str(tmp_path / "mounts"))
    if when == "before it is idle":
        with pytest.raises(StoreError, match="mounted"):
            host.end(workspace)
    else:
        host.start(part)
        host.workspaces().prune(time.time() + 100)
    assert (workspace / "deep/er/c").exists()


@pytest.mark.parametrize("index", [b"x", None], ids=["something else", "none"])
def test_what_cannot_be_used_is_replaced_by_a_fresh_checkout(sent: Sent, index: bytes | None) -> None:
    sent.host.end(sent.host.start(sent.old))
    at = Path(sent.host.idle[0], "index")
    at.unlink() if index is None else at.write_bytes(index)
    assert state_of(sent.host.start(sent.new)) == sent.fresh
    assert sent.host.idle == []


def test_a_full_disk_is_freed_of_idle_ones_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    part = host.send()
    host.end(host.start(part))
    other = IdleWorkspaces(str(host.pool), key_of("/another"), str(host.path / "note"))

    def full(*words: Any) -> None:
        raise DiskFull("/")

    monkeypatch.setattr(idle_workspaces, "check_out", full)
    host.store.check_out([part], str(host.path / "w"), other)
    assert (host.path / "w/b").read_text() == "b\n"
    assert host.idle == []


REFUSED: dict[str, Callable[[Path], object]] = {
    "a note that is gone": lambda w: (w.parent / "note").unlink(),
    "a note that is something else": lambda w: (w.parent / "note").write_bytes(b"x"),
    "a note that leads elsewhere": lambda w: (w.parent / "note").write_bytes(b"/x\0../../x"),
    "a workspace that is gone": lambda w: w.rename(w.parent / "elsewhere"),
    "a link to another directory": lambda w: _link(w.rename(w.parent / "x") and w, "x"),
}


@pytest.mark.parametrize("left", REFUSED)
def test_what_is_no_workspace_any_more_is_no_idle_one(host: Host, left: str) -> None:
    workspace = host.start(host.send())
    REFUSED[left](workspace)
    with pytest.raises((StoreError, OSError, ValueError)):
        host.end(workspace)
    assert host.idle == []


def test_a_tree_of_another_project_gets_a_fresh_workspace(host: Host) -> None:
    host.end(host.start(host.send()))
    other = IdleWorkspaces(str(host.pool), key_of("/home/me/verl"), "")
    assert other.take(str(host.path / "w")) == ""


def test_two_runs_never_have_the_same_workspace(host: Host) -> None:
    host.end(host.start(host.send()))
    taken = [host.workspaces().take(str(host.path / f"w{number}")) for number in range(2)]
    assert [bool(slot) for slot in taken] == [True, False]


def test_two_stay_the_newest_and_unused_ones_go(host: Host) -> None:
    part = host.send()
    started = [host.start(part) for _ in range(4)]
    for number, workspace in enumerate(started):
        host.end(workspace)
        assert len(host.idle) == min(number + 1, 2)
    assert not host.workspaces().prune(time.time() - 100)
    assert len(host.idle) == 2
    assert host.workspaces().prune(time.time() + 100)
    assert os.listdir(host.pool) == []
