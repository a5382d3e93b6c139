"""A recorded tree → the bytes that a host needs to have it, and what every host was sent before.

A pack has one commit of each repository, its tree, and nothing of its history: a clone of depth 1, as
`actions/checkout` makes. Trees that the host has are left out, and what differs from them is sent as a difference.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ci_tasks.agent.files import replace_file
from ci_tasks.agent.trees.git import ID
from ci_tasks.checkout.git import GitError
from ci_tasks.checkout.snapshot import ObjectStore, Snapshot
from ci_tasks.errors import Blocked

_KEPT = 3  # trees per host; more bases cost time and save little
_FORGOTTEN = 90 * 86400.0  # seconds after which a host is not thought of any more
_TIDY_EVERY = 86400.0
_PACKS_KEPT = 14 * 86400.0  # they come back where they are still needed
_WHY = "What a host has"
# `--shallow`: compare also with commits that are no ancestors, and take the listed ones for parentless.
_PACK = ("pack-objects", "--stdout", "--revs", "--thin", "--shallow", "--delta-base-offset", "-q")


def thin_pack(snapshot: Snapshot, have: Sequence[str]) -> Iterator[bytes]:
    """The pack of `snapshot` for a host that has the trees `have`. Those that are not here any more do not matter."""
    store = ObjectStore(snapshot.store)
    # git takes only the trees of commits as bases of differences.
    bases = [store.commit(tree, None, _WHY) for tree in _present(store, have)]
    commits = [*dict.fromkeys([store.commit(snapshot.flat, None, _WHY), *(part.commit for part in snapshot.parts)])]
    lines = [*(f"--shallow {name}" for name in (*commits, *bases)), *commits, *(f"^{base}" for base in bases)]
    question = "".join(f"{line}\n" for line in lines).encode()
    yield from store.reader.stream(*_PACK, input=question)


def _present(store: ObjectStore, trees: Sequence[str]) -> list[str]:
    wanted = "".join(f"{tree}\n" for tree in trees).encode()
    answers = store.reader.text("cat-file", "--batch-check", input=wanted).splitlines()
    return [answer.split()[0] for answer in answers if answer.split()[1] == "tree"]


def record_sent_trees(store: Path, host_key: str, trees: Sequence[str]) -> None:
    """The host has these trees now, the last of them newest. Now and then also tidies the store."""
    newest = [*dict.fromkeys([*reversed(trees), *sent_trees(store, host_key)])][:_KEPT]
    replace_file(str(_note(store, host_key)), "".join(f"{tree}\n" for tree in newest).encode())
    stamp = store / "tidied"
    if not stamp.exists():
        stamp.touch()
    elif time.time() - stamp.stat().st_mtime > _TIDY_EVERY:
        prune_store(store)


def sent_trees(store: Path, host_key: str) -> list[str]:
    """The trees that the host was sent last, newest first."""
    try:
        return [line for line in _note(store, host_key).read_text().splitlines() if ID.fullmatch(line)]
    except OSError:
        return []


def _note(store: Path, host_key: str) -> Path:
    return store / f"sent-{hashlib.sha256(os.fsencode(host_key)).hexdigest()[:16]}"


def prune_store(store: Path, now: float | None = None) -> None:
    """Forget hosts of long ago, and remove objects that nothing needs: large files after a while, others with a day's
    grace, since a command that runs right now has put objects there that nothing refers to yet."""
    now = time.time() if now is None else now
    objects = ObjectStore(store)
    with suppress(Blocked), objects.locked(timeout=0):
        (store / "tidied").touch()
        for old, age in (("sent-*", _FORGOTTEN), ("recorded/pack/*", _PACKS_KEPT)):
            for file in store.glob(old):
                if now - file.stat().st_mtime > age:
                    file.unlink()
        kept = [line for note in store.glob("sent-*") for line in note.read_text().split()]
        prune = "prune", "--expire=1.day.ago"
        try:
            objects.updater().run(*prune, "--", *_present(objects, kept))
        except GitError:  # a tree that was sent has lost objects to a `git gc` of the user's: it is of no use any more
            for note in store.glob("sent-*"):
                note.unlink()
            objects.updater().run(*prune)
