"""A host's store: packs go in, proven workspaces come out, and nothing breaks it for good."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.file_lock import file_lock
from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees.store import MissingBase, StoreError, TreeStore

DAY = 86400.0
GIT = ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]


def git(directory: Path, *args: str, input: str | None = None) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = [*GIT, *args]
    return subprocess.run(
        command, cwd=directory, env=env, input=input, text=True, capture_output=True, check=True
    ).stdout


class Client:
    """A repository, and packs of its commits: uncompressed, so that a test can write other content into them."""

    compression = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        git(path, "init", "-q")

    def commit(self, **files: str) -> CheckoutPart:
        for name, text in files.items():
            (self.path / name).write_text(text)
        git(self.path, "add", "--all")
        git(self.path, "commit", "-q", "--allow-empty", "-m", "commit")
        return self.part("HEAD")

    def part(self, commit: str) -> CheckoutPart:
        commit, tree = git(self.path, "rev-parse", commit, f"{commit}^{{tree}}").split()
        return CheckoutPart("", commit, tree)

    def pack(self, part: CheckoutPart, *have: CheckoutPart) -> bytes:
        shallow = [f"--shallow {tree.commit}" for tree in (part, *have)]
        revisions = "\n".join([*shallow, part.commit, *(f"^{tree.commit}" for tree in have), ""])
        command = [
            *GIT,
            "-c",
            f"pack.compression={self.compression}",
            "pack-objects",
            "--stdout",
            "--revs",
            "--thin",
            "--shallow",
            "-q",
        ]
        return subprocess.run(command, cwd=self.path, input=revisions.encode(), capture_output=True, check=True).stdout


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


@pytest.fixture
def store(tmp_path: Path) -> TreeStore:
    return TreeStore(str(tmp_path / "store.git"), lock_timeout=10)


LARGE = "".join(f"line {number}\n" for number in range(3000))


def sent(client: Client, store: TreeStore, workspace: Path, **files: str) -> CheckoutPart:
    part = client.commit(**files)
    store.receive([client.pack(part)])
    store.check_out([part], str(workspace))
    return part


def left(store: TreeStore) -> list[str]:
    """What is in the store beside packs with their indexes, and files that are meant to be there."""
    expected = {"HEAD", "config", "info", "lock", "objects", "refs", "shallow", "verified"}
    packs = os.listdir(os.path.join(store.path, "objects/pack"))
    whole = {name.rpartition(".")[0] for name in packs if name.endswith(".idx")}
    return sorted({*os.listdir(store.path)} - expected) + sorted(
        name for name in packs if name.rpartition(".")[0] not in whole
    )


def test_what_was_sent_is_checked_out_and_can_be_a_base(client: Client, store: TreeStore, tmp_path: Path) -> None:
    first = sent(client, store, tmp_path / "w", a=LARGE)
    assert (tmp_path / "w/a").read_text() == LARGE
    second = client.commit(a=LARGE + "more\n")
    thin = client.pack(second, first)
    assert len(thin) < 1000
    store.receive(thin[at : at + 7] for at in range(0, len(thin), 7))
    store.check_out([second], str(tmp_path / "w"))
    assert (tmp_path / "w/a").read_text() == LARGE + "more\n"
    assert left(store) == []


def test_a_commit_is_noted_once_it_was_checked_out(client: Client, store: TreeStore, tmp_path: Path) -> None:
    part = client.commit(a="a\n")
    assert part.commit not in store.commits()
    store.receive([client.pack(part)])
    assert part.commit not in store.commits()
    store.check_out([part], str(tmp_path / "w"))
    assert part.commit in store.commits()


def test_a_new_store_has_nothing(store: TreeStore) -> None:
    assert store.commits() == []
    assert store.prune(days=1)


def test_a_workspace_shares_no_file_with_the_store(client: Client, store: TreeStore, tmp_path: Path) -> None:
    sent(client, store, tmp_path / "w", a=LARGE)
    shared = [path for path in (tmp_path / "w").rglob("*") if path.is_file() and path.stat().st_nlink != 1]
    assert shared == []
    assert git(tmp_path / "w", "fsck", "--full", "--no-dangling") == ""


def test_the_hosts_own_settings_do_not_matter(
    client: Client, store: TreeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "hooks/post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    (tmp_path / ".gitconfig").write_text(
        f"[core]\n\tautocrlf = true\n\thooksPath = {hook.parent}\n\tattributesFile = {tmp_path}/attributes\n"
        '[filter "x"]\n\tsmudge = "sed s/a/x/"\n[transfer]\n\tfsckObjects = true\n'
    )
    (tmp_path / "attributes").write_text("* filter=x\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/elsewhere/index")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/elsewhere/objects")
    part_files = {"a": "a\n"}
    with monkeypatch.context() as here:
        for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
            here.delenv(name)
        part = client.commit(**part_files)
        pack = client.pack(part)
    store.receive([pack])
    store.check_out([part], str(tmp_path / "w"))
    assert (tmp_path / "w/a").read_bytes() == b"a\n"
    assert not (tmp_path / "hooked").exists()


def test_a_workspace_that_was_there_is_replaced(client: Client, store: TreeStore, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/left").touch()
    sent(client, store, tmp_path / "w", a="a\n")
    assert sorted(os.listdir(tmp_path / "w")) == [".git", "a"]


# The proof


def spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, then: str) -> None:
    """A git that does something more right after one of its commands."""
    real = shutil.which("git")
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n{real} "$@" || exit\ncase " $* " in *" {after} "*) {then};; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("then", "named"),
    [
        ("echo spoilt >> a", "'a'"),
        ("rm b", "'b'"),
        ("chmod +x c", "'c'"),
        ("touch new", "'new'"),
        ("for i in 1 2 3 4 5 6 7; do touch new$i; done", "'new1', 'new2', 'new3', 'new4', 'new5' and 2 more"),
    ],
)
def test_a_workspace_that_is_not_the_tree_is_an_error_with_the_first_names(
    client: Client, store: TreeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, named: str
) -> None:
    part = client.commit(a="a\n", b="b\n", c="c\n")
    store.receive([client.pack(part)])
    spoil(tmp_path, monkeypatch, "read-tree", then)
    with pytest.raises(StoreError, match=f"is not the tree {part.tree}: {named}$"):
        store.check_out([part], str(tmp_path / "w"))
    assert not (tmp_path / "w").exists()
    assert part.commit not in store.commits()


def test_another_tree_than_the_commits_is_an_error(client: Client, store: TreeStore, tmp_path: Path) -> None:
    first, second = client.commit(a="a\n"), client.commit(a="b\n")
    store.receive([client.pack(second)])
    with pytest.raises(StoreError, match=f"which is not the tree {first.tree}"):
        store.check_out([replace(second, tree=first.tree)], str(tmp_path / "w"))


@pytest.mark.parametrize("name", [".git", ".GIT"])
def test_a_name_that_git_refuses_is_a_clear_error(client: Client, store: TreeStore, tmp_path: Path, name: str) -> None:
    blob = git(client.path, "hash-object", "-w", "--stdin", input="x\n").strip()
    tree = git(client.path, "mktree", "-z", input=f"100644 blob {blob}\t{name}\0").strip()
    part = client.part(git(client.path, "commit-tree", "-m", "odd", tree).strip())
    store.receive([client.pack(part)])
    with pytest.raises(StoreError, match=f"(invalid path|is not the tree).*'{re.escape(name)}'"):
        store.check_out([part], str(tmp_path / "w"))


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [CheckoutPart("sub", "1" * 40, "2" * 40)],
        [CheckoutPart("", "--all", "2" * 40)],
        [CheckoutPart("", "1" * 40, "../x")],
    ],
)
def test_what_names_no_tree_is_refused(store: TreeStore, tmp_path: Path, parts: list[CheckoutPart]) -> None:
    with pytest.raises(StoreError):
        store.check_out(parts, str(tmp_path / "w"))
    assert not (tmp_path / "w").exists()


# Packs that do not arrive


def test_a_base_that_is_not_here(client: Client, store: TreeStore, tmp_path: Path) -> None:
    other = sent(client, store, tmp_path / "w", z="another\n")
    first, second = client.commit(a=LARGE), client.commit(a=LARGE + "more\n")
    with pytest.raises(MissingBase):
        store.receive([client.pack(second, first)])
    assert other.commit in store.commits(), "it was the client's mistake: others keep their trees"
    assert left(store) == []
    store.receive([client.pack(second)])
    store.check_out([second], str(tmp_path / "w"))


@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.999])
def test_a_pack_that_was_cut_leaves_nothing(client: Client, store: TreeStore, tmp_path: Path, part: float) -> None:
    pack = client.pack(client.commit(a=os.urandom(50000).hex()))
    with pytest.raises(StoreError):
        store.receive([pack[: int(len(pack) * part)]])
    assert left(store) == []
    assert os.listdir(os.path.join(store.path, "objects/pack")) == []
    sent(client, store, tmp_path / "w", b="b\n")


def test_a_link_that_dies_goes_through_and_leaves_nothing(client: Client, store: TreeStore) -> None:
    pack = client.pack(client.commit(a=LARGE))

    def dying() -> Iterator[bytes]:
        yield pack[:100]
        raise ConnectionResetError("the link")

    with pytest.raises(ConnectionResetError):
        store.receive(dying())
    assert left(store) == []


def test_a_pack_that_is_refused_is_read_to_its_end(client: Client, store: TreeStore) -> None:
    """What follows it on the wire is not to be taken for a part of it."""
    chunks = iter([b"no pack at all"] + [b"x" * 1000] * 500)
    with pytest.raises(StoreError):
        store.receive(chunks)
    assert next(chunks, None) is None


def test_a_pack_with_a_flipped_bit_is_refused(client: Client, store: TreeStore) -> None:
    pack = bytearray(client.pack(client.commit(a=LARGE)))
    pack[len(pack) // 2] ^= 1
    with pytest.raises(StoreError):
        store.receive([bytes(pack)])
    assert left(store) == []


def test_a_host_without_git_says_so(store: TreeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(StoreError, match="git is not installed on the host"):
        store.receive([b"PACK"])


def test_objects_with_names_of_another_form_are_refused(client: Client, store: TreeStore, tmp_path: Path) -> None:
    sent(client, store, tmp_path / "w", a="a\n")
    with pytest.raises(StoreError, match="ids of another form than sha256"):
        objects_store(store.path).receive([b""])


def objects_store(path: str) -> TreeStore:
    other = TreeStore(path, "sha256")
    other.path = path
    return other


# A store that was damaged


def _no_packs(path: Path) -> None:
    shutil.rmtree(path / "objects")


def _one_pack_less(path: Path) -> None:
    for file in (path / "objects/pack").glob("pack-*"):
        file.chmod(0o644)
        file.unlink()


def _pack_cut(path: Path) -> None:
    for file in (path / "objects/pack").glob("*.pack"):
        file.chmod(0o644)
        os.truncate(file, file.stat().st_size // 2)


def _pack_spoilt(path: Path) -> None:
    for file in (path / "objects/pack").glob("*.pack"):
        file.chmod(0o644)
        content = bytearray(file.read_bytes())
        for at in range(30, len(content) - 20, 10):
            content[at] ^= 0x55
        file.write_bytes(content)


def _index_spoilt(path: Path) -> None:
    for file in (path / "objects/pack").glob("*.idx"):
        file.chmod(0o644)
        os.truncate(file, 100)


def _no_head_and_config(path: Path) -> None:
    (path / "HEAD").write_text("")
    (path / "config").write_text("[core\n")


def _left_by_a_kill(path: Path) -> None:
    (path / "objects/pack/tmp_pack_x").write_text("x")
    next((path / "refs/commits").iterdir()).write_text("")


def _objects_are_a_file(path: Path) -> None:
    shutil.rmtree(path / "objects")
    (path / "objects").touch()


def _no_references(path: Path) -> None:
    shutil.rmtree(path / "refs")


DAMAGES = [
    _no_packs,
    _objects_are_a_file,
    _no_references,
    _one_pack_less,
    _pack_cut,
    _pack_spoilt,
    _index_spoilt,
    _no_head_and_config,
    _left_by_a_kill,
    shutil.rmtree,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_store_gets_everything_anew_and_works(
    client: Client, store: TreeStore, tmp_path: Path, damage: Any
) -> None:
    first = sent(client, store, tmp_path / "w", a=LARGE, b="b\n")
    damage(Path(store.path))
    second = client.commit(a=LARGE + "more\n")
    try:
        store.receive([client.pack(second, first)])
        store.check_out([second], str(tmp_path / "w"))
    except MissingBase:
        store.receive([client.pack(second)])  # the first answer is enough: the client does not have to ask twice
        store.check_out([second], str(tmp_path / "w"))
    assert git(tmp_path / "w", "fsck", "--full", "--no-dangling") == ""
    assert store.prune(days=7, now=time.time() + DAY)
    assert left(store) == []
    assert second.commit in store.commits()


def test_a_damaged_store_is_noticed_when_nothing_is_sent(client: Client, store: TreeStore, tmp_path: Path) -> None:
    part = sent(client, store, tmp_path / "w", a=LARGE)
    _one_pack_less(Path(store.path))
    assert part.commit in store.commits()
    with pytest.raises(MissingBase):
        store.check_out([part], str(tmp_path / "w"))
    assert part.commit not in store.commits()
    assert not (tmp_path / "w").exists()


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


def _forged_file(client: Client, repository: Path) -> None:
    forge(repository, HONEST, FORGED)


def _forged_tree(client: Client, repository: Path) -> None:
    tree = subprocess.run(["git", "cat-file", "tree", "HEAD:"], cwd=client.path, capture_output=True, check=True).stdout
    a, b = (bytes.fromhex(git(client.path, "rev-parse", f"HEAD:{name}").strip()) for name in "ab")
    forge(repository, tree, tree.replace(a, b))


def _forged_commit(client: Client, repository: Path) -> None:
    """Its tree is another one that is there."""
    content = git(client.path, "cat-file", "commit", "HEAD")
    tree, other = (git(client.path, "rev-parse", f"{commit}:").strip() for commit in ("HEAD", "HEAD^"))
    forge(repository, content.encode(), content.replace(tree, other).encode())


@pytest.fixture
def honest(client: Client, store: TreeStore, tmp_path: Path) -> CheckoutPart:
    sent(client, store, tmp_path / "earlier", b="earlier\n")
    return sent(client, store, tmp_path / "w", a=HONEST.decode(), b="b\n")


FORGERIES = [_forged_file, _forged_tree, _forged_commit]


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__.strip("_"))
def test_what_a_job_writes_into_its_own_repository_reaches_no_other_run(
    client: Client, store: TreeStore, honest: CheckoutPart, tmp_path: Path, forgery: Any
) -> None:
    forgery(client, tmp_path / "w/.git")
    store.check_out([honest], str(tmp_path / "next"))
    assert (tmp_path / "next/a").read_bytes() == HONEST


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__.strip("_"))
def test_what_a_job_writes_into_the_store_is_noticed_and_sent_again(
    client: Client, store: TreeStore, honest: CheckoutPart, tmp_path: Path, forgery: Any
) -> None:
    forgery(client, Path(store.path))
    with pytest.raises(MissingBase):
        store.check_out([honest], str(tmp_path / "next"))
    assert not (tmp_path / "next").exists()
    store.receive([client.pack(honest)])
    store.check_out([honest], str(tmp_path / "next"))
    assert (tmp_path / "next/a").read_bytes() == HONEST


def test_a_pack_that_has_another_content_under_the_same_name_is_never_checked_out(
    client: Client, store: TreeStore, honest: CheckoutPart, tmp_path: Path
) -> None:
    """A job may also add one. Which of the two git reads first is open."""
    other = TreeStore(str(tmp_path / "other.git"))
    other.receive([client.pack(honest)])
    _forged_file(client, Path(other.path))
    for file in Path(other.path, "objects/pack").iterdir():
        shutil.copy(file, Path(store.path, "objects/pack", file.name.replace("pack-", "pack-0")))
    try:
        store.check_out([honest], str(tmp_path / "next"))
    except MissingBase:
        store.receive([client.pack(honest)])
        store.check_out([honest], str(tmp_path / "next"))
    assert (tmp_path / "next/a").read_bytes() == HONEST


def test_a_killed_receiver_leaves_what_the_next_prune_removes(client: Client, store: TreeStore, tmp_path: Path) -> None:
    pack = client.pack(client.commit(a=os.urandom(50000).hex()))
    code = (
        "import sys\nfrom ci_tasks.agent.trees.store import TreeStore as Store\n"
        "Store(sys.argv[1]).receive(iter(lambda: sys.stdin.buffer.read1(1000), b''))"
    )
    receiver = subprocess.Popen([sys.executable, "-c", code, store.path], stdin=subprocess.PIPE)
    assert receiver.stdin is not None
    receiver.stdin.write(pack[: len(pack) // 2])
    receiver.stdin.flush()
    deadline = time.monotonic() + 20
    while not list(Path(store.path).glob("incoming-*/pack/tmp_pack_*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not store.prune(days=1), "somebody receives"
    os.kill(receiver.pid, signal.SIGKILL)
    receiver.communicate()
    assert left(store) != []
    while not store.prune(days=1):  # its git ends with it, a moment later
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert left(store) == []


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", disk], capture_output=True, text=True)
    if done.returncode:
        reason = f"cannot mount a small disk: {done.stderr.strip()}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_said_and_the_store_works_afterwards(client: Client, small_disk: Path) -> None:
    store = TreeStore(str(small_disk / "store.git"))
    small = sent(client, store, small_disk / "w", a="a\n")
    large = client.commit(b=os.urandom(14 << 20).hex())
    with pytest.raises(StoreError, match="the host's disk is full") as caught:
        store.receive([client.pack(large)])
    assert not isinstance(caught.value, MissingBase)
    assert left(store) == []
    store.check_out([small], str(small_disk / "w"))
    third = client.commit(b="b\n")
    store.receive([client.pack(third, small)])
    store.check_out([third], str(small_disk / "w"))


def test_a_disk_that_is_full_when_checking_out(client: Client, small_disk: Path) -> None:
    store = TreeStore(str(small_disk / "store.git"))
    client.compression = 9
    part = client.commit(b="0123456789abcdef" * (1 << 20))  # small as a pack, 16 MB as a file
    store.receive([client.pack(part)])
    with pytest.raises(StoreError, match="the host's disk is full") as caught:
        store.check_out([part], str(small_disk / "w"))
    assert not isinstance(caught.value, MissingBase)
    assert not (small_disk / "w").exists()
    sent(client, store, small_disk / "w", b="b\n")


def fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as out:
        while os.statvfs(file).f_bavail:
            out.write(b"x" * 4096)


def test_a_disk_without_any_room(client: Client, small_disk: Path) -> None:
    store = TreeStore(str(small_disk / "store.git"))
    part = sent(client, store, small_disk / "w", a="a\n")
    fill(small_disk / "hog")
    with pytest.raises(StoreError, match="the host's disk is full"):
        store.receive([client.pack(part)])
    with pytest.raises(StoreError, match="the host's disk is full"):
        store.check_out([part], str(small_disk / "x"))
    (small_disk / "hog").unlink()
    store.check_out([part], str(small_disk / "x"))


# Pruning


def packs(store: TreeStore) -> list[str]:
    return [name for name in os.listdir(os.path.join(store.path, "objects/pack")) if name.endswith(".pack")]


def test_trees_that_nobody_used_for_days_are_forgotten(client: Client, store: TreeStore, tmp_path: Path) -> None:
    old, new = (sent(client, store, tmp_path / "w", a=LARGE + text) for text in ("old\n", "new\n"))
    os.utime(os.path.join(store.path, "refs/commits", old.commit), (time.time() - 10 * DAY,) * 2)
    assert store.prune(days=7, now=time.time() + DAY)
    assert store.commits() == [new.commit]
    assert len(packs(store)) == 1
    store.check_out([new], str(tmp_path / "w"))
    with pytest.raises(MissingBase):
        store.check_out([old], str(tmp_path / "w"))


def test_everything_forgotten_leaves_nothing(client: Client, store: TreeStore, tmp_path: Path) -> None:
    sent(client, store, tmp_path / "w", a="a\n")
    assert store.prune(days=7, now=time.time() + 8 * DAY)
    assert (store.commits(), packs(store), left(store)) == ([], [], [])
    sent(client, store, tmp_path / "w", a="b\n")


def test_many_packs_become_one_and_trees_stay(client: Client, store: TreeStore, tmp_path: Path) -> None:
    parts = [client.commit(a=f"{number}\n") for number in range(45)]
    for part in parts:
        store.receive([client.pack(part)])
    for part in parts[:3]:
        store.check_out([part], str(tmp_path / "w"))
    assert store.prune(days=7)
    assert len(packs(store)) == 45, "all are young: somebody may be about to check them out"
    assert store.prune(days=7, now=time.time() + 2 * 3600)
    assert len(packs(store)) == 1
    store.check_out([parts[1]], str(tmp_path / "w"))
    assert left(store) == []


def test_a_pack_that_has_just_come_survives_a_prune(client: Client, store: TreeStore, tmp_path: Path) -> None:
    old = sent(client, store, tmp_path / "w", a="old\n")
    part = client.commit(a=LARGE)
    store.receive([client.pack(part, old)])
    os.utime(os.path.join(store.path, "refs/commits", old.commit), (time.time() - 10 * DAY,) * 2)
    assert store.prune(days=7)
    store.check_out([part], str(tmp_path / "w"))


def test_workspaces_live_on_when_their_tree_is_forgotten(client: Client, store: TreeStore, tmp_path: Path) -> None:
    sent(client, store, tmp_path / "w", a=LARGE)
    store.prune(days=0, now=time.time() + DAY)
    assert git(tmp_path / "w", "fsck", "--full", "--no-dangling") == ""
    assert git(tmp_path / "w", "show", "HEAD:a") == LARGE


def test_nobody_waits_for_ever_for_one_that_hangs(client: Client, store: TreeStore, tmp_path: Path) -> None:
    part = sent(client, store, tmp_path / "w", a="a\n")
    impatient = TreeStore(store.path, lock_timeout=0.1)
    with file_lock(os.path.join(store.path, "lock"), exclusive=True, timeout=0):
        with pytest.raises(StoreError, match="was locked by another process"):
            impatient.receive([client.pack(part)])
        with pytest.raises(StoreError, match="was locked by another process"):
            impatient.check_out([part], str(tmp_path / "w"))
        assert not impatient.prune(days=0)
    impatient.check_out([part], str(tmp_path / "w"))


def test_receivers_do_not_wait_for_each_other(client: Client, store: TreeStore, tmp_path: Path) -> None:
    part = client.commit(a="a\n")
    pack = client.pack(part)

    def slow() -> Iterator[bytes]:
        yield pack[:10]
        TreeStore(store.path, lock_timeout=0).receive([pack])
        yield pack[10:]

    store.receive(slow())
    store.check_out([part], str(tmp_path / "w"))
    assert (tmp_path / "w/a").read_text() == "a\n"
