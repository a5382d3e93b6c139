"""Working trees in workspaces of this machine, byte for byte and proven as on a host: the local `actions/checkout`.

A workspace borrows the objects of the repositories, and has their history.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ci_tasks.agent.files import replace_file
from ci_tasks.agent.records import Checkout, CheckoutPart, Conversion, Retry
from ci_tasks.agent.trees.git import DiskFull, StoreError
from ci_tasks.agent.trees.workspace import check_out
from ci_tasks.agent.trees.workspace import Lend, update_workspace
from ci_tasks.checkout.git import Git
from ci_tasks.checkout.overlays import in_directory
from ci_tasks.checkout.repository import BASE, commit_of, resolve_base
from ci_tasks.checkout.snapshot import ObjectStore, Snapshot, take_snapshot
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.given_values import OverlaySource


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
        store = Path(scratch, "store")
        snapshot = take_snapshot(source, store, rev=rev, base=base, overlays=overlays, not_ours=workspace)
        try:
            check_out(str(store), checkout_parts(snapshot), str(workspace), _lend(snapshot, copy=True))
        except DiskFull as error:
            raise Blocked(str(error)) from None
        except StoreError as error:
            raise CheckoutError(f"the copy of {source} is not its tree: {error}") from None
    for part in snapshot.parts:
        top_base = resolve_base(source, base) if base and not part.path else None
        if origin := top_base or (commit_of(part.repository.git, BASE) if part.repository else part.commit):
            Git(workspace / part.path / ".git").run("update-ref", f"refs/remotes/{BASE}", origin)
    return snapshot.checkout


def checkout_parts(snapshot: Snapshot) -> list[CheckoutPart]:
    return [
        CheckoutPart(part.path, part.commit, part.tree, "" if part.path else snapshot.flat) for part in snapshot.parts
    ]


def continue_workspace(snapshot: Snapshot, workspace: str, retry: Retry, run_dir: str) -> None:
    """Bring the workspace of an ended run to the snapshot. Raises NotKept, StoreError, OSError."""
    lend = _lend(snapshot, copy=False)
    update_workspace(str(snapshot.store), checkout_parts(snapshot), workspace, retry, run_dir, lend)


def _lend(snapshot: Snapshot, *, copy: bool) -> Lend:
    """Gives a job's repositories the objects: copies of those that we recorded, or else the store's."""
    store, repositories = ObjectStore(snapshot.store), {part.path: part.repository for part in snapshot.parts}

    def lend(part: CheckoutPart, git_dir: str) -> None:
        lenders = store.lenders
        if copy and part.path:
            lenders[0] = "/".join([".."] * (part.path.count("/") + 3)) + "/.git/objects"
        elif copy:
            del lenders[0]
            shutil.copytree(store.recorded, Path(git_dir, "objects"), dirs_exist_ok=True)
        alternates = "".join(f"{line}\n" for line in lenders)
        replace_file(os.path.join(git_dir, "objects/info/alternates"), os.fsencode(alternates))
        repository = repositories[part.path]
        if repository and (shallow := repository.common / "shallow").exists():
            shutil.copyfile(shallow, Path(git_dir, "shallow"))

    return lend


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
    return tuple(found for name, checkout in checkouts.items() for found in in_directory(name, checkout.conversions))
