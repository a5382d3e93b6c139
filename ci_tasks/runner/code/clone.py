"""Parts of a tree that was sent → a workspace: repositories of their own, checked out and proven to be the tree.

Nothing in a workspace refers to the store, since a container sees only the workspace: packs are linked, or copied.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, List, Sequence

from .hostgit import Git, StoreError, names
from .objects import ID, make_repository, write_whole

_SHOWN = 5


def check_out(packs: str, parts: Sequence[Dict[str, Any]], workspace: str, form: str) -> None:
    """Make `workspace` anew from the directory `packs`. Leaves nothing where it raises StoreError, OSError."""
    ordered = sorted(parts, key=lambda part: str(part["path"]).count("/") if part["path"] else -1)
    _check(ordered)
    _remove(workspace)
    os.makedirs(workspace)
    try:
        for number, part in enumerate(ordered):
            if part["path"]:
                _is_a_submodule(part, ordered[:number], workspace)
            _one(packs, part, os.path.join(workspace, part["path"]) if part["path"] else workspace, form)
    except BaseException:
        _remove(workspace)
        raise


def _check(parts: Sequence[Dict[str, Any]]) -> None:
    for part in parts:
        if not (ID.fullmatch(part["commit"]) and ID.fullmatch(part["tree"])):
            raise StoreError("not the names of a commit and a tree: %r, %r" % (part["commit"], part["tree"]))
    if not parts or parts[0]["path"]:
        raise StoreError("the checkout itself is not among its parts")


def _is_a_submodule(part: Dict[str, Any], earlier: Sequence[Dict[str, Any]], workspace: str) -> None:
    """What is around it must have it there, at this very commit; so its path cannot lead anywhere else either."""
    path = part["path"]
    around = [one["path"] for one in earlier if not one["path"] or path.startswith(one["path"] + "/")]
    above = max(around, key=len)
    inside = path[len(above) + 1 :] if above else path
    directory = os.path.join(workspace, above) if above else workspace
    listed = _git(directory).run("ls-files", "--stage", "-z", "--", inside)
    if listed != os.fsencode("160000 %s 0\t%s\0" % (part["commit"], inside)):
        raise StoreError("%r is not a submodule at %s of what was sent" % (path, part["commit"]))


def _git(directory: str) -> Git:
    return Git(os.path.join(directory, ".git"), directory)


def _one(packs: str, part: Dict[str, Any], directory: str, form: str) -> None:
    git_dir = os.path.join(directory, ".git")
    make_repository(git_dir, form, bare=False)
    _link(packs, os.path.join(git_dir, "objects", "pack"))
    write_whole(os.path.join(git_dir, "shallow"), part["commit"].encode("ascii") + b"\n")
    git = _git(directory)
    git.run("checkout", "--quiet", "--force", "--detach", part["commit"])
    _prove(git, part)


def _link(packs: str, into: str) -> None:
    for name in sorted(os.listdir(packs)):
        if not name.startswith("pack-") or not name.endswith((".pack", ".idx", ".rev")):
            continue
        source, target = os.path.join(packs, name), os.path.join(into, name)
        try:
            os.link(source, target)
        except OSError:
            # Another file system, one without links, or a job that ran as root has made the pack its own.
            shutil.copyfile(source, target)


def _prove(git: Git, part: Dict[str, Any]) -> None:
    here = git.run("rev-parse", "HEAD", "HEAD^{tree}").decode("ascii").split()
    if here != [part["commit"], part["tree"]]:
        raise StoreError("%s has %s, which is not the tree %s" % (git.directory, " ".join(here), part["tree"]))
    differing = names(git.run("status", "--porcelain=v1", "-z", "--ignore-submodules=all"))
    if differing and not _only_line_ends(git, differing):
        more = " and %d more" % (len(differing) - _SHOWN) if len(differing) > _SHOWN else ""
        shown = ", ".join(repr(entry[3:]) for entry in differing[:_SHOWN])
        raise StoreError("%s is not the tree %s: %s%s" % (git.directory, part["tree"], shown, more))


def _only_line_ends(git: Git, differing: List[str]) -> bool:
    """Files committed with other line ends than their .gitattributes ask for look modified in any clone, CI's too."""
    if not all(entry.startswith(" M ") for entry in differing):
        return False
    # Where git is to look past line ends, it does not see that a file has become executable.
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
