"""A snapshot elsewhere: as the pack that a host lacks of it, or as a workspace of this machine.

A pack has one commit of each repository, its tree, and nothing of its history: a clone of depth 1, as
`actions/checkout` makes. Trees that the host has are left out, and what differs from them is sent as a difference. A
workspace here borrows the objects of the repositories, and has their history. Both are proven by the tree's hash.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ci_tasks.agent.git import DiskFull, StoreError
from ci_tasks.agent.records import Checkout, CheckoutPart, Conversion
from ci_tasks.agent.workspace import check_out
from ci_tasks.checkout.repository import BASE, CheckoutGit, commit_of, hint_if_missing, resolve_rev
from ci_tasks.checkout.snapshot import ObjectStore, Snapshot, take_snapshot
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.given_values import OverlaySource

_OLD = 14 * 86400.0  # seconds
_WHY = "What a host has"
# `--shallow`: compare also with commits that are no ancestors, and take the listed ones for parentless.
_PACK = ("pack-objects", "--stdout", "--revs", "--thin", "--shallow", "--delta-base-offset", "-q")


def thin_pack(snapshot: Snapshot, have: Sequence[str]) -> Iterator[bytes]:
    """The pack of `snapshot` for a host that has the trees `have`, the newest first. Trees that are not here any more
    do not matter."""
    store = ObjectStore(snapshot.store)
    # git takes only the trees of commits as bases of differences.
    answers = store.reader.text("cat-file", "--batch-check", input="".join(f"{tree}\n" for tree in have).encode())
    present = [line.split()[0] for line in answers.splitlines() if line.split()[1] == "tree"]
    bases = [store.commit(tree, "", _WHY) for tree in present[:2]]  # more take longer than they save
    commits = sorted({store.commit(snapshot.flat, "", _WHY), *(part.checkout.commit for part in snapshot.parts)})
    lines = [*(f"--shallow {name}" for name in (*commits, *bases)), *commits, *(f"^{base}" for base in bases)]
    yield from store.reader.stream(*_PACK, input="".join(f"{line}\n" for line in lines).encode())


def prune_store(store: Path) -> None:
    """Remove the store of a checkout that was not used for long; of another one what was recorded long ago: objects
    that are still needed come back."""
    objects, before = ObjectStore(store), time.time() - _OLD
    is_unused = store.stat().st_mtime < before
    with suppress(Blocked), objects.locked(timeout=0):
        if is_unused:
            shutil.rmtree(store, ignore_errors=True)
            return
        for file in store.glob("recorded/pack/*"):
            if file.stat().st_mtime < before:
                file.unlink()
        objects.writer.run("prune", f"--expire={_OLD:.0f}.seconds.ago")


def materialize(
    source: Path,
    workspace: Path,
    *,
    rev: str | None = None,
    base: str | None = None,
    overlays: Sequence[OverlaySource] = (),
) -> Checkout:
    """Make `workspace` a clone of `source`'s working tree, or of its revision `rev`; `origin/main` there is `base`.

    Returns what was cloned, its tree proven equal. Raises CheckoutError, Blocked.
    """
    workspace = workspace.absolute()
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recorded-", dir=workspace.parent) as scratch:
        snapshot = take_snapshot(source, Path(scratch, "store"), rev=rev, overlays=overlays)
        clone(snapshot, workspace)
    for part in snapshot.parts:
        top_base = resolve_rev(source, base) if base and not part.path else None
        own_base = commit_of(part.repository.git, BASE) if part.repository else part.checkout.commit
        if origin := top_base or own_base:
            CheckoutGit(workspace / part.path / ".git").run("update-ref", f"refs/remotes/{BASE}", origin)
    return snapshot.checkout


def clone(snapshot: Snapshot, workspace: Path) -> None:
    """Make `workspace` the snapshot, with the history of its repositories. Raises CheckoutError, Blocked."""
    store, repositories = ObjectStore(snapshot.store), {part.path: part.repository for part in snapshot.parts}

    def lend(part: CheckoutPart, git_dir: str) -> None:
        """Copies of the objects that we recorded, the others where they are, and where the history ends."""
        if not part.path:
            shutil.copytree(store.recorded, Path(git_dir, "objects"), dirs_exist_ok=True)
            Path(git_dir, "objects/info/alternates").write_bytes(os.fsencode("\n".join([*store.lenders[1:], ""])))
        repository = repositories[part.path]
        if repository and (shallow := repository.common / "shallow").exists():
            shutil.copyfile(shallow, Path(git_dir, "shallow"))

    try:
        check_out(str(snapshot.store), snapshot.checkout_parts, str(workspace), lend)
    except DiskFull as error:
        raise Blocked(str(error)) from None
    except StoreError as error:
        message = f"the copy of {snapshot.checkout.path} is not its tree: {error}"
        raise CheckoutError(message, hint=hint_if_missing(str(error))) from None


def copy_side_by_side(
    trees: Mapping[str, Path], into: Path, revisions: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Checkout]:
    """Copy each working tree, uncommitted files and submodules included, to `into`/NAME, without its repository; if
    `revisions` has NAME, its tree at that revision instead.

    Returns what each of them is: commit, tree and the files that differ from the commit. Raises CheckoutError.
    """
    checkouts = {}
    for name, source in trees.items():
        checkouts[name] = materialize(source, into / name, rev=revisions.get(name))
        for git in [*(into / name).rglob(".git")]:
            shutil.rmtree(git) if git.is_dir() and not git.is_symlink() else git.unlink()
    return checkouts


def all_conversions(checkouts: Mapping[str, Checkout]) -> tuple[Conversion, ...]:
    """What CI's checkout would convert of each tree, every path below its tree's name."""
    pairs = ((name, found) for name, checkout in checkouts.items() for found in checkout.conversions)
    return tuple(replace(found, files=tuple(f"{name}/{file}" for file in found.files)) for name, found in pairs)
