"""A recorded tree → the bytes that a host needs to have it, and what every host was sent before.

A pack has one commit, its tree, and nothing of its history: a clone of depth 1, as `actions/checkout` makes. Trees that
the host has are left out, and what differs from them is sent as a difference.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci_tasks.agent.trees.repositories import ID, RepositoryRefs
from ci_tasks.checkout.git import Git, GitError
from ci_tasks.checkout.object_store import commit_content, store_locked, write_commit
from ci_tasks.checkout.snapshot import SnapshotPart
from ci_tasks.errors import Blocked

BASES = 4  # trees that a pack is compared with; more cost time and save little
_KEPT = 4  # trees per host
_FORGOTTEN = 90 * 86400.0  # seconds after which a host is not thought of any more
_TIDY_EVERY = 86400.0
_GRACE = 86400.0
_PACKS_KEPT = 14 * 86400.0  # they come back where they are still needed
_SETTINGS = (
    "pack.compression=1",  # the link is hardly ever slower than better compression
    "pack.windowMemory=128m",
)
_WHY = "What a host has"
# `--shallow`: compare also with commits that are no ancestors, and take the listed ones for parentless.
_PACK = ("pack-objects", "--stdout", "--revs", "--thin", "--shallow", "--delta-base-offset", "-q")


def thin_pack(part: SnapshotPart, have: Sequence[str]) -> Iterator[bytes]:
    """The pack of `part` for a host that has the trees `have`. Those that are not here any more do not matter."""
    git = Git(part.store, settings=_SETTINGS)
    bases = _bases(git, part.store, have)
    yield from git.stream(*_PACK, input=_question(part.commit, bases))


def _question(commit: str, bases: list[str]) -> bytes:
    lines = [f"--shallow {name}" for name in (commit, *bases)] + [commit, *(f"^{base}" for base in bases)]
    return "".join(f"{line}\n" for line in lines).encode()


def _bases(git: Git, store: Path, trees: Sequence[str]) -> list[str]:
    """A commit of each tree that is here: git leaves out what a tree has, but takes only the trees of commits as bases
    of differences. Most of them were made for an earlier pack, so one question saves a process for each."""
    commits = {tree: commit_content(tree, None, _WHY)[0] for tree in trees if ID.fullmatch(tree)}
    if not commits:
        return []
    objects = "".join(f"{tree}\n{commit}\n" for tree, commit in commits.items()).encode()
    answers = [line.split() for line in git.text("cat-file", "--batch-check", input=objects).splitlines()]
    here = {answer[0]: answer[1] for answer in answers}
    present = [tree for tree in commits if here.get(tree) == "tree"][:BASES]
    for tree in present:
        if here.get(commits[tree]) != "commit":
            write_commit(store, tree, None, _WHY)
    return [commits[tree] for tree in present]


def record_sent_trees(store: Path, host_key: str, trees: Sequence[str]) -> None:
    """The host has these trees now, the last of them newest. Now and then also tidies the store."""
    marks = _marks(store, host_key)
    for tree in trees:
        marks.add(tree)
    marks.keep(_KEPT)
    stamp = store / "tidied"
    if not stamp.exists():
        stamp.touch()
    elif time.time() - stamp.stat().st_mtime > _TIDY_EVERY:
        prune_store(store)


def sent_trees(store: Path, host_key: str) -> list[str]:
    """The trees that the host was sent last, newest first."""
    return _marks(store, host_key).newest()


def _marks(store: Path, host_key: str) -> RepositoryRefs:
    return RepositoryRefs(
        str(store), "hosts/" + hashlib.sha256(host_key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    )


def prune_store(store: Path, now: float | None = None) -> None:
    """Forget hosts of long ago, remove what commands that were killed have left, and objects which nothing needs.

    A day's grace: a command that runs right now has put objects there that nothing refers to yet.
    """
    now = time.time() if now is None else now
    try:
        with store_locked(store, timeout=0):
            (store / "tidied").touch()
            for host in (store / "refs/hosts").glob("*"):
                RepositoryRefs(str(store), f"hosts/{host.name}").forget(now - _FORGOTTEN)
            for index in store.glob("index-*"):
                if _age(index, now) > _GRACE:
                    shutil.rmtree(index)
            for pack in store.glob("objects/pack/*.pack"):  # very large files, and what a partial clone lacked
                if _age(pack, now) > _PACKS_KEPT:
                    for file in pack.parent.glob(f"{pack.stem}.*"):
                        file.unlink()
            _prune(store)
    except (Blocked, FileNotFoundError):
        pass  # somebody else is at it


def _age(path: Path, now: float) -> float:
    return now - path.stat().st_mtime


def _prune(store: Path) -> None:
    git = Git(store)
    try:
        git.run("prune", "--expire=1.day.ago")
    except GitError:  # a tree that was sent has lost objects to a `git gc` of the user's: it is of no use any more
        shutil.rmtree(store / "refs", ignore_errors=True)
        (store / "refs").mkdir()
        (store / "index").unlink(missing_ok=True)
        git.run("prune", "--expire=1.day.ago")
