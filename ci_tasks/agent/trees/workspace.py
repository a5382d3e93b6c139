"""Checks a workspace out of a store's packs: a repository for each part, verified to be exactly its tree.

Nothing in a workspace refers to the store, since a container sees only the workspace, and nothing is shared with it,
since a job may write whatever it reads. Objects and files are hashed from their bytes on each use.
"""

from __future__ import annotations

import os
import shutil
from typing import Dict, Sequence

from ..files import replace_file
from ..records import CheckoutPart
from .git import DiskFull, HostGit, MissingBase, StoreError
from .objects import SUBMODULE, TreeEntries, TreeEntry, object_reader, read_tree
from .repositories import ID, form_of, make_repository
from .verify import verify_checkout


def check_out(packs: str, parts: Sequence[CheckoutPart], workspace: str, form: str) -> None:
    """Replace `workspace` by a checkout from the directory `packs`. Leaves nothing where it raises StoreError or
    OSError."""
    outer_first = sorted(parts, key=lambda part: part.path.count("/") if part.path else -1)
    _check_ids(outer_first)
    _remove(workspace)
    os.makedirs(workspace)
    listings: Dict[str, TreeEntries] = {}
    try:
        for part in outer_first:
            if part.path:
                check_submodule(part, listings)
            directory = os.path.join(workspace, part.path) if part.path else workspace
            listings[part.path] = _check_out_part(packs, part, directory, form)
    except BaseException:
        _remove(workspace)
        raise


def _check_ids(parts: Sequence[CheckoutPart]) -> None:
    for part in parts:
        if not (ID.fullmatch(part.commit) and ID.fullmatch(part.tree)):
            raise StoreError("not the names of a commit and a tree: %r, %r" % (part.commit, part.tree))
    if not parts or parts[0].path:
        raise StoreError("the checkout itself is not among its parts")


def check_submodule(part: CheckoutPart, listings: Dict[str, TreeEntries]) -> str:
    """The part around it must have the submodule there, at this commit; so its path cannot lead elsewhere. Returns the
    path of the part around it."""
    above = max((path for path in listings if not path or part.path.startswith(path + "/")), key=len)
    if listings[above].get(os.fsencode(inside_of(part, above))) != TreeEntry(SUBMODULE, part.commit):
        raise StoreError("%r is not a submodule at %s of what was sent" % (part.path, part.commit))
    return above


def inside_of(part: CheckoutPart, above: str) -> str:
    """The path of a part from that of the part around it."""
    return part.path[len(above) + 1 :] if above else part.path


def _check_out_part(packs: str, part: CheckoutPart, directory: str, form: str) -> TreeEntries:
    git_dir = os.path.join(directory, ".git")
    make_repository(git_dir, form, bare=False)
    _copy_packs(packs, os.path.join(git_dir, "objects", "pack"))
    replace_file(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
    return check_out_tree(HostGit(git_dir, directory), part)


def check_out_tree(git: HostGit, part: CheckoutPart) -> TreeEntries:
    """Check the part's commit out into git's work tree, which is empty, and verify it. Raises MissingBase for objects
    that are missing or damaged, DiskFull, StoreError."""
    with object_reader(git, form_of(part.tree)) as reader:
        entries = read_tree(reader, part.commit, part.tree)
        try:
            git.run("checkout", "--quiet", "--force", "--detach", part.commit)
        except DiskFull:
            raise
        except StoreError as error:  # whatever git calls it: the tree is sound, so it is a file's content
            raise MissingBase(str(error)) from None
        verify_checkout(git, part.tree, entries, reader)
    return entries


def _copy_packs(packs: str, into: str) -> None:
    """Not linked: what a job writes to its own repository would be what the next one is checked out of."""
    for name in sorted(os.listdir(packs)):
        if name.startswith("pack-") and name.endswith((".pack", ".idx", ".rev")):
            shutil.copyfile(os.path.join(packs, name), os.path.join(into, name))
            os.chmod(os.path.join(into, name), 0o444)


def _remove(workspace: str) -> None:
    if os.path.lexists(workspace):
        shutil.rmtree(workspace)
