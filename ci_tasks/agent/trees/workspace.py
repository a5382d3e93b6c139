"""Checks a workspace out of a store's packs: a repository for each part, verified to be exactly its tree.

Nothing in a workspace refers to the store, since a container sees only the workspace: packs are hard-linked, or copied.
"""

from __future__ import annotations

import os
import shutil
from typing import List, Sequence

from ..records import CheckoutPart
from .git import HostGit, StoreError, split_names
from .repositories import ID, make_repository, write_whole

_MAX_SHOWN = 5


def check_out(packs: str, parts: Sequence[CheckoutPart], workspace: str, form: str) -> None:
    """Replace `workspace` by a checkout from the directory `packs`. Leaves nothing where it raises StoreError or
    OSError."""
    outer_first = sorted(parts, key=lambda part: part.path.count("/") if part.path else -1)
    _check_ids(outer_first)
    _remove(workspace)
    os.makedirs(workspace)
    try:
        for number, part in enumerate(outer_first):
            if part.path:
                _check_submodule(part, outer_first[:number], workspace)
            _check_out_part(packs, part, os.path.join(workspace, part.path) if part.path else workspace, form)
    except BaseException:
        _remove(workspace)
        raise


def _check_ids(parts: Sequence[CheckoutPart]) -> None:
    for part in parts:
        if not (ID.fullmatch(part.commit) and ID.fullmatch(part.tree)):
            raise StoreError("not the names of a commit and a tree: %r, %r" % (part.commit, part.tree))
    if not parts or parts[0].path:
        raise StoreError("the checkout itself is not among its parts")


def _check_submodule(part: CheckoutPart, earlier: Sequence[CheckoutPart], workspace: str) -> None:
    """The part around it must have the submodule there, at this commit; so its path cannot lead elsewhere."""
    path = part.path
    around = [tree.path for tree in earlier if not tree.path or path.startswith(tree.path + "/")]
    above = max(around, key=len)
    inside = path[len(above) + 1 :] if above else path
    directory = os.path.join(workspace, above) if above else workspace
    listed = _git(directory).run("ls-files", "--stage", "-z", "--", inside)
    if listed != os.fsencode("160000 %s 0\t%s\0" % (part.commit, inside)):
        raise StoreError("%r is not a submodule at %s of what was sent" % (path, part.commit))


def _git(directory: str) -> HostGit:
    return HostGit(os.path.join(directory, ".git"), directory)


def _check_out_part(packs: str, part: CheckoutPart, directory: str, form: str) -> None:
    git_dir = os.path.join(directory, ".git")
    make_repository(git_dir, form, bare=False)
    _link_packs(packs, os.path.join(git_dir, "objects", "pack"))
    write_whole(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
    git = _git(directory)
    git.run("checkout", "--quiet", "--force", "--detach", part.commit)
    _verify(git, part)


def _link_packs(packs: str, into: str) -> None:
    for name in sorted(os.listdir(packs)):
        if not name.startswith("pack-") or not name.endswith((".pack", ".idx", ".rev")):
            continue
        source, target = os.path.join(packs, name), os.path.join(into, name)
        try:
            os.link(source, target)
        except OSError:
            # Another file system, one without links, or a job that ran as root has made the pack its own.
            shutil.copyfile(source, target)


def _verify(git: HostGit, part: CheckoutPart) -> None:
    actual = git.run("rev-parse", "HEAD", "HEAD^{tree}").decode("ascii").split()
    if actual != [part.commit, part.tree]:
        raise StoreError("%s has %s, which is not the tree %s" % (git.directory, " ".join(actual), part.tree))
    differing = split_names(git.run("status", "--porcelain=v1", "-z", "--ignore-submodules=all"))
    if differing and not _only_line_ends(git, differing):
        more = " and %d more" % (len(differing) - _MAX_SHOWN) if len(differing) > _MAX_SHOWN else ""
        shown = ", ".join(repr(entry[3:]) for entry in differing[:_MAX_SHOWN])
        raise StoreError("%s is not the tree %s: %s%s" % (git.directory, part.tree, shown, more))


def _only_line_ends(git: HostGit, differing: List[str]) -> bool:
    """Files committed with other line ends than .gitattributes says look modified in any clone, CI's too."""
    if not all(entry.startswith(" M ") for entry in differing):
        return False
    # With --ignore-cr-at-eol git does not see that a file has become executable.
    raw = git.run("diff", "--raw", "-z", "--ignore-submodules=all")
    if any(entry[1:7] != entry[8:14] for entry in raw.split(b"\0") if entry.startswith(b":1")):
        return False
    try:
        git.run("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-cr-at-eol", "--ignore-submodules=all")
    except StoreError:
        return False
    return True


def _remove(workspace: str) -> None:
    if os.path.lexists(workspace):
        shutil.rmtree(workspace)
