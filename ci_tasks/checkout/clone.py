"""A checkout's working tree → exactly it, in a fresh clone here: the local form of `actions/checkout`.

It is byte for byte what is on disk, and proven as on a host. It borrows the objects of the repositories, and has their
history.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.files import replace_file
from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees.git import DiskFull, StoreError
from ci_tasks.agent.trees.workspace import check_out, check_parts
from ci_tasks.checkout.git import Git
from ci_tasks.checkout.object_store import ObjectStore
from ci_tasks.checkout.record_tree import record_tree, whole_checkout
from ci_tasks.checkout.revision import BASE
from ci_tasks.errors import Blocked, CheckoutError
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import Checkout


def materialize(
    source: Path,
    workspace: Path,
    *,
    rev: str | None = None,
    base: str | None = None,
    overlays: Sequence[OverlaySource] = (),
) -> Checkout:
    """Make `workspace` a clone of `source`'s working tree, or of its revision `rev`; `origin/main` there is `base`.

    Returns what was cloned, its tree proven equal. Raises CheckoutError.
    """
    workspace = workspace.absolute()
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recorded-", dir=workspace.parent) as scratch:
        store = ObjectStore(Path(scratch, "store"))
        recorded = record_tree(source, store, rev=rev, base=base, overlays=overlays, not_ours=workspace)
        trees = {tree.path: tree for tree in recorded}

        def lend(part: CheckoutPart, git_dir: str) -> None:
            objects, lenders = Path(git_dir, "objects"), store.lenders[1:]
            if part.path:
                lenders = ["/".join([".."] * (part.path.count("/") + 3)) + "/.git/objects", *lenders]
            else:
                shutil.copytree(store.recorded, objects, dirs_exist_ok=True)
            replace_file(str(objects / "info/alternates"), os.fsencode("".join(f"{line}\n" for line in lenders)))
            repository = trees[part.path].repository
            if repository and (shallow := repository.common / "shallow").exists():
                shutil.copyfile(shallow, Path(git_dir, "shallow"))

        parts = [CheckoutPart(tree.path, tree.checkout.commit, tree.checkout.tree, tree.flat) for tree in recorded]
        try:
            check_out(str(store.path), check_parts(parts), str(workspace), lend)
        except DiskFull as error:
            raise Blocked(str(error)) from None
        except StoreError as error:
            raise CheckoutError(f"the copy of {source} is not its tree: {error}") from None
    for tree in recorded:
        if tree.base:
            Git(workspace / tree.path / ".git").run("update-ref", f"refs/remotes/{BASE}", tree.base)
    return replace(whole_checkout(recorded), path=str(source))
