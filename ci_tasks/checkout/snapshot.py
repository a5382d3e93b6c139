"""A checkout's working tree → exactly it, as objects that can be sent to a host."""

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


@dataclass(frozen=True)
class Snapshot:
    """A checkout as it was, the checkout itself before its submodules. `flat` is the tree with the files of all."""

    checkout: Checkout
    parts: tuple[SnapshotPart, ...]
    flat: str

    @property
    def store(self) -> Path:
        return self.parts[0].store

    @cached_property
    def _reader(self) -> FileReader:
        return FileReader(Git(self.store))

    def read(self, path: str) -> bytes | None:
        """A file's content; links inside the checkout are followed. None where there is no such file."""
        if ".." in path.split("/"):
            return None
        name = f"{self.flat}:{path}"
        if "\n" not in name:  # the one character that such questions cannot have
            return self._reader.read(name)
        try:
            return Git(self.store).run("cat-file", "blob", name)
        except GitError:
            return None

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Paths of files and links that begin and end so, submodules included."""
        directory = prefix.rpartition("/")[0]
        below = ["--", f"{directory}/"] if directory else []
        listed = Git(self.store).null_separated("ls-tree", "-r", "-z", "--name-only", "--full-tree", self.flat, *below)
        return sorted(name for name in listed if name.startswith(prefix) and name.endswith(suffix))

    def select(self, pathspecs: Sequence[str]) -> list[str]:
        """Paths that git's pathspecs select in the checkout itself, as `git diff -- PATHSPEC` would if all were new."""
        git = Git(self.store)
        empty = git.text("hash-object", "-t", "tree", os.devnull)
        return git.null_separated("diff-tree", "-r", "-z", "--name-only", empty, self.parts[0].tree, "--", *pathspecs)


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
    recorded = record_tree(source, made := ObjectStore(store), rev=rev, base=base, overlays=overlays)
    parts = tuple(SnapshotPart(tree.path, made.path, tree.checkout.commit, tree.checkout.tree) for tree in recorded)
    return Snapshot(replace(whole_checkout(recorded), path=str(source)), parts, recorded[0].flat)
