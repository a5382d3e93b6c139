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

from ci_tasks.agent.records import Checkout, CheckoutPart, Conversion
from ci_tasks.agent.trees.git import DiskFull, StoreError
from ci_tasks.agent.trees.workspace import check_out
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
        snapshot = take_snapshot(
            source, Path(scratch, "store"), rev=rev, base=base, overlays=overlays, not_ours=workspace
        )
        clone(snapshot, workspace)
    for part in snapshot.parts:
        top_base = resolve_base(source, base) if base and not part.path else None
        if origin := top_base or (commit_of(part.repository.git, BASE) if part.repository else part.commit):
            Git(workspace / part.path / ".git").run("update-ref", f"refs/remotes/{BASE}", origin)
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
        raise CheckoutError(f"the copy of {snapshot.checkout.path} is not its tree: {error}") from None


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
