"""A checkout's working tree → exactly it, in parts that can be sent to a host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.file_reader import FileReader
from ci_tasks.checkout.git import Git, GitError
from ci_tasks.checkout.object_store import ObjectStore
from ci_tasks.checkout.record_tree import record_tree, whole_checkout
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import Checkout


@dataclass(frozen=True)
class SnapshotPart:
    """A repository of a snapshot: the checkout (path ""), or a submodule by its path from the checkout's root."""

    path: str
    store: Path
    commit: str
    tree: str

    @cached_property
    def reader(self) -> FileReader:
        return FileReader(Git(self.store))


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
        if "\n" not in name:  # the one character that such questions cannot have
            return part.reader.read(name)
        try:
            return Git(part.store).run("cat-file", "blob", name)
        except GitError:
            return None

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Paths of files and links that begin and end so, submodules included."""
        matches = []
        for part in self.parts:
            above = f"{part.path}/" if part.path else ""
            if not (prefix.startswith(above) or above.startswith(prefix)):
                continue
            directory = prefix[len(above) :].rpartition("/")[0]
            below = ["--", f"{directory}/"] if directory else []
            listed = Git(part.store).run("ls-tree", "-r", "-z", "--full-tree", part.tree, *below)
            entries = (entry.split(b"\t", 1) for entry in listed.split(b"\0") if entry)
            names = (above + os.fsdecode(name) for meta, name in entries if not meta.startswith(b"160000"))
            matches += [name for name in names if name.startswith(prefix) and name.endswith(suffix)]
        return sorted(matches)

    def select(self, pathspecs: Sequence[str]) -> list[str]:
        """Paths that git's pathspecs select in the checkout itself, as `git diff -- PATHSPEC` would if all were new."""
        part = self.parts[0]
        git = Git(part.store)
        empty = git.text("hash-object", "-t", "tree", "/dev/null")
        return git.null_separated("diff-tree", "-r", "-z", "--name-only", empty, part.tree, "--", *pathspecs)

    def _part_of(self, path: str) -> tuple[SnapshotPart, str]:
        around = (part for part in self.parts if not part.path or path.startswith(f"{part.path}/"))
        part = max(around, key=lambda part: len(part.path))
        return part, path[len(part.path) + 1 :] if part.path else path


def take_snapshot(
    source: Path,
    store: Path,
    *,
    rev: str | None = None,
    base: str | None = None,
    overlays: Sequence[OverlaySource] = (),
) -> Snapshot:
    """`source`'s working tree, or its revision `rev`, as objects in the directory `store`, which may be there already
    and be in use. Raises CheckoutError, Blocked."""
    recorded = record_tree(source, ObjectStore(store.absolute()), rev=rev, base=base, overlays=overlays)
    parts = tuple(
        SnapshotPart(tree.path, tree.target.git_dir, tree.checkout.commit, tree.checkout.tree)
        for tree in reversed(recorded)
    )
    return Snapshot(replace(whole_checkout(recorded), path=str(source)), parts)
