"""Two working trees side by side as one: what is sent to a host, and proven there, is both."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ci_tasks.checkout.clone import materialize
from ci_tasks.checkout.conversions import in_directory
from ci_tasks.records import Checkout, Conversion


def copy_side_by_side(
    trees: Mapping[str, Path], into: Path, revisions: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Checkout]:
    """Copy each working tree, uncommitted files and submodules included, to `into`/NAME, without its repository; where
    `revisions` has NAME, its tree at that revision instead.

    Returns what each of them is: commit, tree and the files that differ from the commit. Raises CheckoutError.
    """
    checkouts = {}
    for name, source in trees.items():
        checkouts[name] = materialize(source, into / name, rev=revisions.get(name))
        for git in [*(into / name).rglob(".git")]:
            if git.is_dir() and not git.is_symlink():
                shutil.rmtree(git)
            else:
                git.unlink()
    return checkouts


def all_conversions(checkouts: Mapping[str, Checkout]) -> tuple[Conversion, ...]:
    """What CI's checkout would convert of each tree, every path below its tree's name."""
    return tuple(found for name, checkout in checkouts.items() for found in in_directory(name, checkout.conversions))
