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
from ci_tasks.checkout.snapshot import ObjectStore, Snapshot
from ci_tasks.errors import Blocked

_KEPT = 3  # trees per host; more bases cost time and save little
_TIDY_EVERY = 86400.0  # seconds
_OLD = 14 * 86400.0  # seconds; a host that was sent nothing for so long is sent everything
_WHY = "What a host has"
# `--shallow`: compare also with commits that are no ancestors, and take the listed ones for parentless.
_PACK = ("pack-objects", "--stdout", "--revs", "--thin", "--shallow", "--delta-base-offset", "-q")


def thin_pack(snapshot: Snapshot, have: Sequence[str]) -> Iterator[bytes]:
    """The pack of `snapshot` for a host that has the trees `have`. Those that are not here any more do not matter."""
    store = ObjectStore(snapshot.store)
    # git takes only the trees of commits as bases of differences.
    answers = store.reader.text("cat-file", "--batch-check", input="".join(f"{tree}\n" for tree in have).encode())
    present = [line.split()[0] for line in answers.splitlines() if line.split()[1] == "tree"]
    bases = [store.commit(tree, "", _WHY) for tree in present]
    commits = [*dict.fromkeys([store.commit(snapshot.flat, "", _WHY), *(part.commit for part in snapshot.parts)])]
    lines = [*(f"--shallow {name}" for name in (*commits, *bases)), *commits, *(f"^{base}" for base in bases)]
    question = "".join(f"{line}\n" for line in lines).encode()
    yield from store.reader.stream(*_PACK, input=question)


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


def prune_store(store: Path) -> None:
    """Forget hosts of long ago, and remove what was recorded then: objects that are still needed come back."""
    objects = ObjectStore(store)
    with suppress(Blocked), objects.locked(timeout=0):
        (store / "tidied").touch()
        for file in (*store.glob("sent-*"), *store.glob("recorded/pack/*")):
            if time.time() - file.stat().st_mtime > _OLD:
                file.unlink()
        objects.writer.run("prune", f"--expire={_OLD:.0f}.seconds.ago")
