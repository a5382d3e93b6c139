"""A checkout's working tree → exactly it, in a fresh clone here: the local form of `actions/checkout`.

It is byte for byte what is on disk, and verified file by file. A host does the same from what it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.records import CheckoutPart
from ci_tasks.agent.trees.git import DiskFull, HostGit, StoreError
from ci_tasks.agent.trees.objects import TreeEntries
from ci_tasks.agent.trees.workspace import check_out_tree, check_submodule
from ci_tasks.checkout.git import Git
from ci_tasks.checkout.object_store import CloneTarget
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

    Returns what was cloned, its tree hash proven equal. Raises CheckoutError.
    """
    recorded = record_tree(source, CloneTarget(workspace.absolute()), rev=rev, base=base, overlays=overlays)
    listings: dict[str, TreeEntries] = {}
    # The checkout itself first, since it makes the directories in which its submodules belong.
    for tree in reversed(recorded):
        clone, part = tree.target.git_dir.parent, CheckoutPart(tree.path, tree.checkout.commit, tree.checkout.tree)
        if tree.base:
            Git(tree.target.git_dir).run("update-ref", f"refs/remotes/{BASE}", tree.base)
        try:
            if tree.path:
                check_submodule(part, listings)
            listings[tree.path] = check_out_tree(HostGit(str(clone / ".git"), str(clone)), part)
        except DiskFull as error:
            raise Blocked(str(error)) from None
        except StoreError as error:
            raise CheckoutError(f"the copy of {source} is not its tree: {error}") from None
    return replace(whole_checkout(recorded), path=str(source))
