"""Checks a workspace out of a store's packs: a repository for each part, verified to be exactly its tree.

Nothing in a workspace refers to the store, since a container sees only the workspace, and nothing is shared with it,
since a job may write whatever it reads. Objects and files are hashed from their bytes on each use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import Dict, Iterator, Optional, Sequence

from ..directories import remove_own
from ..files import replace_file
from ..records import CheckoutPart
from .git import DiskFull, HostGit, MissingBase, StoreError
from .idle_workspaces import IdleWorkspaces, NoteLines, NotReusable, update_files
from .objects import SUBMODULE, TreeEntries, TreeEntry, object_reader, read_tree
from .repositories import ID, form_of, make_repository
from .verify import verify_checkout


def check_out(
    packs: str, parts: Sequence[CheckoutPart], workspace: str, form: str, idle: Optional[IdleWorkspaces] = None
) -> None:
    """Replace `workspace` by a checkout from the directory `packs`, made of an idle one where there is one. Leaves
    nothing where it raises StoreError or OSError."""
    outer_first = sorted(parts, key=lambda part: part.path.count("/") if part.path else -1)
    _check_ids(outer_first)
    _remove_own(workspace)
    if idle is None:
        _check_out_parts(packs, outer_first, workspace, form)
        return
    try:
        listings = _update(packs, outer_first, workspace, form, idle)
        listings = listings or _check_out_parts(packs, outer_first, workspace, form)
    except DiskFull:
        if not idle.prune(time.time()):
            raise
        listings = _check_out_parts(packs, outer_first, workspace, form)
    with suppress(OSError):  # without it, the workspace is removed after the run
        idle.write_note(listings)


def _update(
    packs: str, outer_first: Sequence[CheckoutPart], workspace: str, form: str, idle: IdleWorkspaces
) -> Optional[Dict[str, TreeEntries]]:
    """Bring an idle workspace to these parts. None, and no workspace, where none can be; a fresh checkout says why."""
    try:
        os.makedirs(os.path.dirname(workspace), exist_ok=True)
        before = idle.take(workspace)
        if before is not None:
            _set_aside(workspace, outer_first)
            return _check_out_parts(packs, outer_first, workspace, form, before)
    except (StoreError, OSError):
        pass
    _remove_own(workspace)
    return None


def _set_aside(workspace: str, outer_first: Sequence[CheckoutPart]) -> None:
    """Remove each `.git`, and move submodules into that of the workspace: git has to find their directories empty."""
    _remove_own(os.path.join(workspace, ".git"))
    os.mkdir(os.path.join(workspace, ".git"))
    top = os.path.realpath(workspace)
    for part in outer_first[:0:-1]:
        directory = os.path.join(top, part.path)
        if os.path.isdir(directory) and os.path.realpath(directory) == directory:
            _remove_own(os.path.join(directory, ".git"))
            os.rename(directory, _aside(workspace, part))


def _put_back(workspace: str, part: CheckoutPart, directory: str) -> None:
    if part.path and os.path.lexists(_aside(workspace, part)):
        os.rmdir(directory)
        os.rename(_aside(workspace, part), directory)


def _aside(workspace: str, part: CheckoutPart) -> str:
    return os.path.join(workspace, ".git", "aside-" + hashlib.sha256(os.fsencode(part.path)).hexdigest())


def _remove_own(path: str) -> None:
    problem = remove_own(path)
    if problem:
        raise NotReusable(problem)


def _check_out_parts(
    packs: str, outer_first: Sequence[CheckoutPart], workspace: str, form: str, before: Optional[NoteLines] = None
) -> Dict[str, TreeEntries]:
    """The entries of each part, which is verified. `before`: what the workspace was checked out as already."""
    os.makedirs(workspace, exist_ok=before is not None)
    listings: Dict[str, TreeEntries] = {}
    try:
        for part in outer_first:
            if part.path:
                check_submodule(part, listings)
            directory = os.path.join(workspace, part.path) if part.path else workspace
            if before is not None:
                _put_back(workspace, part, directory)
            listings[part.path] = _check_out_part(packs, part, directory, form, before)
        return listings
    except BaseException:
        _remove_own(workspace)
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


def _check_out_part(
    packs: str, part: CheckoutPart, directory: str, form: str, before: Optional[NoteLines]
) -> TreeEntries:
    git_dir = os.path.join(directory, ".git")
    make_repository(git_dir, form, bare=False)
    _copy_packs(packs, os.path.join(git_dir, "objects", "pack"))
    replace_file(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
    return check_out_tree(HostGit(git_dir, directory), part, before)


def check_out_tree(git: HostGit, part: CheckoutPart, before: Optional[NoteLines] = None) -> TreeEntries:
    """Check the part's commit out into git's work tree, which is empty, or of a workspace that was checked out as
    `before`, and verify it. Raises MissingBase for objects that are missing or damaged, DiskFull, StoreError."""
    with object_reader(git, form_of(part.tree)) as reader, nullcontext() if before is None else _verifying_packs(git):
        entries = read_tree(reader, part.commit, part.tree)
        try:
            if before is not None:
                update_files(git, reader, part, entries, before)
                return entries
            git.run("checkout", "--quiet", "--force", "--detach", part.commit)
        except DiskFull:
            raise
        except StoreError as error:  # whatever git calls it: the tree is sound, so it is a file's content
            raise MissingBase(str(error)) from None
        verify_checkout(git, part.tree, entries, reader.form)
    return entries


@contextmanager
def _verifying_packs(git: HostGit) -> Iterator[None]:
    """Meanwhile each of its objects is hashed: a checkout reads only those of changed files, but a job any. Raises
    StoreError at the end of the block."""
    packs = os.path.join(git.env["GIT_DIR"], "objects", "pack")
    indexes = [os.path.join(packs, name) for name in os.listdir(packs) if name.endswith(".idx")]
    with git.started(("verify-pack", *indexes), stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.communicate()


def _copy_packs(packs: str, into: str) -> None:
    """Not linked: what a job writes to its own repository would be what the next one is checked out of."""
    for name in sorted(os.listdir(packs)):
        if name.startswith("pack-") and name.endswith((".pack", ".idx", ".rev")):
            shutil.copyfile(os.path.join(packs, name), os.path.join(into, name))
            os.chmod(os.path.join(into, name), 0o444)
