"""A checkout's working tree → exactly it, elsewhere: a fresh clone here, or parts that can be sent to a host.

A clone is the local form of `actions/checkout`. It is checked out as CI would, whatever the user's own git
configuration says of line ends and filters, and proven to be the tree. A host does the same from what it is sent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from ci_tasks.checkout.git import Git, GitError
from ci_tasks.checkout.object_store import CloneTarget, ObjectStore
from ci_tasks.checkout.record_tree import record_tree
from ci_tasks.checkout.revision import BASE
from ci_tasks.errors import CheckoutError
from ci_tasks.records import Checkout


@dataclass(frozen=True)
class SnapshotPart:
    """A repository of a snapshot: the checkout (path ""), or a submodule by its path from the checkout's root."""

    path: str
    store: Path
    commit: str
    tree: str


@dataclass(frozen=True)
class Snapshot:
    """A checkout as it was, the checkout itself before its submodules."""

    checkout: Checkout
    parts: tuple[SnapshotPart, ...]

    def read(self, path: str) -> bytes | None:
        """A file's content; links inside its repository are followed. None where there is no such file."""
        if ".." in path.split("/"):
            return None
        part, inside = self._part_of(path)
        name = f"{part.tree}:{inside}"
        git = Git(part.store, neutral=True)
        if "\n" in name:  # the one character that such questions cannot have
            try:
                return git.run("cat-file", "blob", name)
            except GitError:
                return None
        answer = git.run("cat-file", "--batch", "--follow-symlinks", input=os.fsencode(name) + b"\n")
        head, _, content = answer.partition(b"\n")
        return content[:-1] if head.split(b" ")[1:2] == [b"blob"] else None

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Paths of files and links that begin and end so, submodules included."""
        matches = []
        for part in self.parts:
            above = f"{part.path}/" if part.path else ""
            if not (prefix.startswith(above) or above.startswith(prefix)):
                continue
            directory = prefix[len(above) :].rpartition("/")[0]
            below = ["--", f"{directory}/"] if directory else []
            listed = Git(part.store, neutral=True).run("ls-tree", "-r", "-z", "--full-tree", part.tree, *below)
            entries = (entry.split(b"\t", 1) for entry in listed.split(b"\0") if entry)
            names = (above + os.fsdecode(name) for meta, name in entries if not meta.startswith(b"160000"))
            matches += [name for name in names if name.startswith(prefix) and name.endswith(suffix)]
        return sorted(matches)

    def _part_of(self, path: str) -> tuple[SnapshotPart, str]:
        around = (part for part in self.parts if not part.path or path.startswith(f"{part.path}/"))
        part = max(around, key=lambda part: len(part.path))
        return part, path[len(part.path) + 1 :] if part.path else path


def take_snapshot(source: Path, store: Path, *, rev: str | None = None, base: str | None = None) -> Snapshot:
    """`source`'s working tree, or its revision `rev`, as objects in the directory `store`, which may be there already
    and be in use. Raises CheckoutError, Blocked."""
    recorded = record_tree(source, ObjectStore(store.absolute()), rev=rev, base=base)
    parts = tuple(
        SnapshotPart(tree.path, tree.target.git_dir, tree.checkout.commit, tree.checkout.tree)
        for tree in reversed(recorded)
    )
    return Snapshot(replace(recorded[-1].checkout, path=str(source)), parts)


def materialize(source: Path, workspace: Path, *, rev: str | None = None, base: str | None = None) -> Checkout:
    """Make `workspace` a clone of `source`'s working tree, or of its revision `rev`; `origin/main` there is `base`.

    Returns what was cloned, its tree hash proven equal. Raises CheckoutError.
    """
    recorded = record_tree(source, CloneTarget(workspace.absolute()), rev=rev, base=base)
    # The checkout itself first, since it makes the directories in which its submodules belong.
    for tree in reversed(recorded):
        clone = tree.target.git_dir.parent
        if tree.base:
            Git(clone, neutral=True).run("update-ref", f"refs/remotes/{BASE}", tree.base)
        _check_out(clone, tree.checkout)
    return replace(recorded[-1].checkout, path=str(source))


def _check_out(workspace: Path, made: Checkout) -> None:
    git = Git(workspace, neutral=True, settings=("status.renames=false", "diff.renames=false"))
    git.run("checkout", "--quiet", "--force", "--detach", made.commit)
    here = git.text("rev-parse", "HEAD^{tree}")
    differing = git.run("status", "--porcelain=v1", "-z", "--ignore-submodules=all")
    if here != made.tree or (differing and not _only_line_ends(git, differing)):
        names = differing.replace(b"\0", b" ").decode(errors="replace")[:300]
        raise CheckoutError(f"the copy in {workspace} is not the tree {made.tree}: {names or here}")


def _only_line_ends(git: Git, differing: bytes) -> bool:
    """Files committed with other line ends than their .gitattributes ask for look modified in any clone, CI's too."""
    if not all(entry.startswith(b" M ") for entry in differing.split(b"\0") if entry):
        return False
    # Where git is to look past line ends, it does not see that a file has become executable.
    raw = git.run("diff", "--raw", "-z", "--ignore-submodules=all")
    if any(entry[1:7] != entry[8:14] for entry in raw.split(b"\0") if entry.startswith(b":1")):
        return False
    try:
        git.run("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-cr-at-eol", "--ignore-submodules=all")
    except GitError:
        return False
    return True
