"""A host's store: packs go in, proven workspaces come out, and nothing breaks it for good."""

# mypy: disable-error-code="func-returns-value"
# A table below is of things to do; several stand in a tuple, whose values are not read.

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.files import file_lock
from ci_tasks.agent.git import DiskFull, Git, MissingBase, StoreError
from ci_tasks.agent.workspace import TreeStore
from tests.agent.conftest import wait_until
from tests.agent.trees.support import Host, git

DAY = 86400.0
LARGE = "".join(f"line {number}\n" for number in range(3000))
KEPT = {"HEAD", "config", "info", "lock", "objects", "refs", "verified"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def packs(host: Host) -> list[Path]:
    return [*Path(host.store.path, "objects/pack").glob("*.pack")]


def left(host: Host) -> set[str]:
    """What is in the store beside packs with their indexes, and files that are meant to be there."""
    names = {path for path in Path(host.store.path, "objects/pack").iterdir() if not path.with_suffix(".idx").exists()}
    return {*os.listdir(host.store.path)} - KEPT | {path.name for path in names}


def test_what_was_sent_is_checked_out_and_can_be_a_base(host: Host) -> None:
    first = host.send(a=LARGE)
    workspace = host.check_out(first)
    (workspace / "left").touch()
    second = host.commit(a=LARGE + "more\n")
    thin = host.pack(second, first)
    assert len(thin) < 1000
    host.receive(thin)
    host.check_out(second)
    assert sorted(os.listdir(workspace)) == [".git", "a"]
    assert (workspace / "a").read_text() == LARGE + "more\n"
    assert left(host) == set()


def test_a_workspace_shares_no_file_with_the_store_and_needs_nothing_of_it(host: Host) -> None:
    workspace = host.check_out(host.send(a=LARGE))
    assert [path for path in workspace.rglob("*") if path.is_file() and path.stat().st_nlink != 1] == []
    assert host.store.prune(days=-1)
    assert packs(host) == []
    assert git(workspace, "fsck", "--full", "--no-dangling") == ""


def test_the_hosts_own_settings_do_not_matter(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = tmp_path / "hooks/post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    (tmp_path / "attributes").write_text("* filter=x\n")
    (tmp_path / ".gitconfig").write_text(
        f"[core]\n\tautocrlf = true\n\thooksPath = {hook.parent}\n\tattributesFile = {tmp_path}/attributes\n"
        '[filter "x"]\n\tsmudge = "sed s/a/x/"\n[transfer]\n\tfsckObjects = true\n'
    )
    part = host.commit(a="a\n")
    pack = host.pack(part)
    for name, value in {"HOME": str(tmp_path), "GIT_DIR": "/else", "GIT_INDEX_FILE": "/else/index"}.items():
        monkeypatch.setenv(name, value)
    host.store = TreeStore(host.store.path)
    host.receive(pack)
    assert (host.check_out(part) / "a").read_bytes() == b"a\n"
    assert not (tmp_path / "hooked").exists()


# The proof


@pytest.mark.parametrize("then", ["echo spoilt >> a", "rm b", "chmod +x c", "touch new", "mkdir new", "ln -sf b a"])
def test_a_workspace_that_is_not_the_tree_is_an_error(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    part = host.send(a="a\n", b="b\n", c="c\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(
        f'#!/bin/sh\n{shutil.which("git")} "$@" || exit\ncase " $* " in *" read-tree "*) {then};; esac\n'
    )
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    host.store = TreeStore(host.store.path)
    with pytest.raises(StoreError, match=part.tree):
        host.check_out(part)
    assert not (host.path / "w").exists()


def test_another_tree_than_the_commits_is_an_error(host: Host) -> None:
    first, second = host.send(a="a\n"), host.send(a="b\n")
    with pytest.raises(StoreError, match=f"does not have the tree {first.tree}"):
        host.check_out(replace(second, tree=first.tree))


# Packs that do not arrive


@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.999])
def test_a_pack_that_was_cut_or_spoilt_leaves_nothing(host: Host, part: float) -> None:
    pack = bytearray(host.pack(host.commit(a=os.urandom(50000).hex())))
    at = int(len(pack) * part)
    for spoilt in (pack[:at], pack[:at] + bytes([pack[at] ^ 1]) + pack[at + 1 :]):
        with pytest.raises(StoreError):
            host.receive(bytes(spoilt))
        assert (left(host), packs(host)) == (set(), [])
    host.check_out(host.send(b="b\n"))


def test_a_host_without_git_says_so(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/empty")
    host.store = TreeStore(host.store.path)
    with pytest.raises(StoreError, match="git is not installed on the host"):
        host.receive(b"PACK")


# A store that was damaged


def _spoil(path: Path, pattern: str, change: Callable[[Path], object]) -> None:
    for file in path.glob(pattern):
        file.chmod(0o644)
        change(file)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[30:-20:10] = bytes(byte ^ 0x55 for byte in content[30:-20:10])
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no objects": lambda path: shutil.rmtree(path / "objects"),
    "a file for its objects": lambda path: (shutil.rmtree(path / "objects"), (path / "objects").touch()),
    "a lost pack": lambda path: _spoil(path, "objects/pack/pack-*", Path.unlink),
    "a cut pack": lambda path: _spoil(path, "objects/pack/*.pack", lambda file: os.truncate(file, 90)),
    "a spoilt pack": lambda path: _spoil(path, "objects/pack/*.pack", _flip),
    "a cut index": lambda path: _spoil(path, "objects/pack/*.idx", lambda file: os.truncate(file, 100)),
    "no HEAD": lambda path: ((path / "HEAD").write_text(""), (path / "config").write_text("[core\n")),
    "nothing": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_gets_everything_again_and_works(host: Host, damage: str) -> None:
    first = host.send(a=LARGE, b="b\n")
    host.check_out(first)
    DAMAGES[damage](Path(host.store.path))
    second = host.commit(a=LARGE + "more\n")
    try:
        host.receive(host.pack(second, first))
        host.check_out(second)
    except MissingBase:
        host.receive(host.pack(second))  # the first answer is enough: the client does not have to ask twice
        host.check_out(second)
    assert git(host.path / "w", "fsck", "--full", "--no-dangling") == ""
    assert left(host) == set()


def test_a_workspace_that_cannot_be_made_is_no_fault_of_the_store(host: Host) -> None:
    part = host.send(a="a\n")
    (host.path / "file").touch()
    with pytest.raises(OSError, match="file"):
        host.store.check_out([part], str(host.path / "file/w"))
    assert packs(host)


def forge(repository: Path, before: bytes, after: bytes) -> None:
    """Give an object of a repository's packs another content of the same length, which git reads without complaint."""
    for pack in repository.glob("objects/pack/*.pack"):
        content = bytearray(pack.read_bytes())
        at = content.find(before)
        if at >= 0:
            end = at + len(before)
            content[at:end] = after
            content[end : end + 4] = zlib.adler32(after).to_bytes(4, "big")
            pack.chmod(0o644)
            with open(pack, "r+b") as out:  # the same file: another name of it has the other content too
                out.write(content)
            return
    raise AssertionError("no pack has it")


HONEST, FORGED = b"exit 1  # as committed\n", b"exit 0  # rewritten, ha\n"[:22] + b"\n"


def _forged_file(host: Host, repository: Path) -> None:
    forge(repository, HONEST, FORGED)


def _forged_tree(host: Host, repository: Path) -> None:
    tree = subprocess.run(["git", "cat-file", "tree", "HEAD:"], cwd=host.source, capture_output=True, check=True).stdout
    a, b = (bytes.fromhex(git(host.source, "rev-parse", f"HEAD:{name}").strip()) for name in "ab")
    forge(repository, tree, tree.replace(a, b))


def _forged_commit(host: Host, repository: Path) -> None:
    """Its tree is another one that is there."""
    content = git(host.source, "cat-file", "commit", "HEAD")
    tree, other = (git(host.source, "rev-parse", f"{commit}:").strip() for commit in ("HEAD", "HEAD^"))
    forge(repository, content.encode(), content.replace(tree, other).encode())


@pytest.mark.parametrize("forgery", [_forged_file, _forged_tree, _forged_commit])
@pytest.mark.parametrize("where", ["the store", "a job's own repository"])
def test_other_content_under_the_name_of_an_object_never_reaches_a_later_run(
    host: Host, forgery: Callable[[Host, Path], None], where: str
) -> None:
    host.send(a="before\n", b="b\n")
    part = host.send(a=HONEST.decode(), b=FORGED.decode())
    workspace = host.start(part)
    forgery(host, Path(host.store.path) if where == "the store" else workspace / ".git")
    host.end(workspace)
    try:
        after = host.start(part)
    except MissingBase:
        host.receive(host.pack(part))
        after = host.start(part)
    assert (after / "a").read_bytes() == HONEST
    assert git(after, "fsck", "--full", "--no-dangling") == ""


def test_a_killed_receiver_leaves_what_the_next_prune_removes(host: Host) -> None:
    pack = host.pack(host.commit(a=os.urandom(50000).hex()))
    code = (
        "import sys\nfrom ci_tasks.agent.workspace import TreeStore as Store\n"
        "Store(sys.argv[1]).receive(sys.stdin.buffer)"
    )
    receiver = subprocess.Popen([sys.executable, "-c", code, host.store.path], stdin=subprocess.PIPE)
    assert receiver.stdin is not None
    receiver.stdin.write(pack[: len(pack) // 2])
    receiver.stdin.flush()
    wait_until(lambda: list(Path(host.store.path).glob("objects/pack/tmp_*")))
    assert not host.store.prune(days=1), "another process receives"
    os.kill(receiver.pid, signal.SIGKILL)
    receiver.communicate()
    assert left(host) != set()
    wait_until(lambda: host.store.prune(days=1) and not left(host))  # its git ends with it, a moment later


# A full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Host]:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", disk], capture_output=True, text=True)
    if done.returncode:
        reason = f"cannot mount a small disk: {done.stderr.strip()}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    host = Host(tmp_path / "host")
    host.path, host.store = disk, TreeStore(str(disk / "store.git"))
    yield host
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_said_and_the_store_works_afterwards(small: Host) -> None:
    part = small.send(a="a\n")
    with pytest.raises(DiskFull, match="the host's disk is full"):
        small.send(b=os.urandom(14 << 20).hex())
    assert left(small) == set()
    small.compression = 9
    large = small.send(b="0123456789abcdef" * (1 << 20))  # small as a pack, 16 MB as a file
    with pytest.raises(DiskFull, match="the host's disk is full"):
        small.check_out(large)
    assert not (small.path / "w").exists()
    with open(small.path / "hog", "wb", buffering=0) as out:
        while os.statvfs(small.path).f_bavail:
            out.write(b"x" * 4096)
    with pytest.raises(DiskFull, match="the host's disk is full"):
        small.check_out(part)
    (small.path / "hog").unlink()
    small.check_out(part)


@pytest.mark.parametrize(
    ("message", "kind", "shown"),
    [
        ("fatal: write error: No space left on device", DiskFull, "No space left"),
        ("error: file write error. Out of diskspace\nfatal: index-pack failed", DiskFull, "index-pack failed"),
        ("fatal: write error: Disk quota exceeded", DiskFull, "quota"),
        ("error: unable to write file 'a b'", DiskFull, "'a b'"),
        ("error: unable to write file a: Permission denied", MissingBase, "Permission denied"),
        ("", MissingBase, "exit code 128"),
    ],
)
def test_an_error_of_git_is_a_full_disk_or_all_has_to_be_sent(
    tmp_path: Path, message: str, kind: type[StoreError], shown: str
) -> None:
    error = Git(tmp_path).refused("checkout", message.encode(), 128)
    assert type(error) is kind
    assert shown in str(error) and f"git checkout in {tmp_path}" in str(error)


# Pruning


def test_an_old_store_is_emptied_and_works_again(host: Host) -> None:
    part = host.send(a=LARGE)
    assert host.store.prune(days=1)
    assert packs(host)
    os.utime(Path(host.store.path, "config"), times=(0, time.time() - 8 * DAY))
    assert host.store.prune(days=7)
    assert (packs(host), left(host)) == ([], set())
    with pytest.raises(MissingBase):
        host.check_out(part)
    host.check_out(host.send(a="b\n"))


def test_many_packs_become_one_and_trees_stay(host: Host) -> None:
    parts = [host.send(a=f"{number}\n") for number in range(42)]
    assert host.store.prune(days=7)
    assert len(packs(host)) == 1
    host.check_out(parts[1])
    assert left(host) == set()


def test_one_that_hangs_is_not_waited_for_for_ever(host: Host) -> None:
    part = host.send(a="a\n")
    host.store = TreeStore(host.store.path, lock_timeout=0.1)
    with file_lock(os.path.join(host.store.path, "lock"), exclusive=True, timeout=0):
        with pytest.raises(StoreError, match="was locked by another process"):
            host.receive(host.pack(part))
        with pytest.raises(StoreError, match="was locked by another process"):
            host.check_out(part)
        assert not host.store.prune(days=0)
    host.check_out(part)


def test_receivers_do_not_wait_for_each_other_and_nobody_takes_what_they_have_not_received(host: Host) -> None:
    part = host.send(a="a\n")
    for name in ("tmp_pack_x", f"pack-{'1' * 40}.pack"):
        Path(host.store.path, "objects/pack", name).symlink_to("gone a moment later")
    with file_lock(os.path.join(host.store.path, "lock"), exclusive=False, timeout=0):  # as another receiver has it
        host.store = TreeStore(host.store.path, lock_timeout=0)
        host.receive(host.pack(part))
        assert (host.check_out(part) / "a").read_text() == "a\n"
