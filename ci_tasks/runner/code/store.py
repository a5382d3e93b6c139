"""The trees that a host was sent, and everything that is needed to check them out or to send what differs from them.

A bare repository of packs. `refs/trees/ID` is a tree that is here in full, `refs/commits/ID` a commit that has one; the
time of the file is that of its last use. Nothing in here is worth anything: whatever is damaged is thrown away, and the
client sends it again.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence

from . import clone
from .hostgit import Git, MissingBase, StoreError
from .objects import Busy, Marks, locked, make_repository, write_whole

__all__ = ["MissingBase", "Store", "StoreError"]

_MANY = 40  # packs; every one of them is linked into each workspace, and looked through for each object
_GRACE = 3600.0  # seconds for which a pack may lie here before something refers to it


class Store:
    """The store in the directory `path`, for objects whose names have the form `form` (sha1 or sha256).

    Several processes may use it at once. Nobody waits for another for more than `patience` seconds.
    """

    def __init__(self, path: str, form: str = "sha1", patience: float = 120.0) -> None:
        self.path = os.path.abspath(path)
        self.form = form
        self.patience = patience
        self._trees = Marks(self.path, "trees")
        self._commits = Marks(self.path, "commits")
        self._packs = os.path.join(self.path, "objects", "pack")

    def has(self, tree: str) -> bool:
        return self._trees.has(tree)

    def trees(self, limit: int) -> List[str]:
        """The trees that are here in full, last used first."""
        return self._trees.newest()[:limit]

    def receive(self, chunks: Iterable[bytes]) -> None:
        """Take a pack, in chunks of any size. What `chunks` raises goes through; nothing of the pack stays then.

        Raises MissingBase where the pack builds on objects that are not here, and StoreError; `chunks` is read to its
        end all the same, so that what follows it on the wire is not taken for a part of it.
        """
        rest = iter(chunks)
        try:
            with self._guarded(), self._held(exclusive=False):
                self._make()
                self._index(rest)
        except StoreError:
            for _ in rest:
                pass
            raise

    def check_out(self, parts: Sequence[Dict[str, Any]], workspace: str) -> None:
        """Make `workspace`, which is replaced, from parts {"path", "commit", "tree"}, and prove that it is the tree.

        Raises MissingBase where objects of it are not here, and StoreError; there is no workspace then.
        """
        with self._guarded(), self._held(exclusive=False):
            self._make()
            clone.check_out(self._packs, parts, os.path.abspath(workspace), self.form)
            for part in parts:
                self._trees.add(part["tree"])
                self._commits.add(part["commit"])

    def prune(self, days: float, now: Optional[float] = None) -> bool:
        """Forget trees that were not used for so long, remove what killed processes left, and repack where that
        helps. Returns False, having done nothing, while others use the store."""
        now = time.time() if now is None else now
        if not os.path.isdir(self.path):
            return True
        try:
            with _words_for_a_full_disk(self.path), locked(self._lock, exclusive=True, patience=0):
                self._make()
                self._sweep()
                since = now - days * 86400
                gone = self._trees.forget(since) + self._commits.forget(since)
                young = self._young(now)
                packs = sum(name.endswith(".pack") for name in os.listdir(self._packs))
                if gone or packs - len(young) > _MANY:
                    self._repack(young)
        except Busy:
            return False
        return True

    @property
    def _lock(self) -> str:
        return os.path.join(self.path, "lock")

    def _make(self) -> None:
        if not make_repository(self.path, self.form):
            raise StoreError("%s has objects with names of another form than %s" % (self.path, self.form))

    @contextmanager
    def _held(self, exclusive: bool) -> Iterator[None]:
        os.makedirs(self.path, exist_ok=True)
        try:
            with locked(self._lock, exclusive, self.patience):
                yield
        except Busy:
            raise StoreError("%s was in use by another process for %.0f s" % (self.path, self.patience)) from None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What is missing may be the client's mistake, or a hole in the store. Whoever finds a hole throws the store
        away: then a pack that has everything is sure to do. Workspaces have links of their own."""
        try:
            with _words_for_a_full_disk(self.path):
                yield
        except MissingBase:
            with self._held(exclusive=True):
                if not self._sound():
                    self._empty()
            raise

    def _sound(self) -> bool:
        try:
            self._write_shallow()
            Git(self.path).run("fsck", "--full", "--no-dangling", "--no-progress")
        except StoreError:
            return False
        return True

    def _index(self, chunks: Iterator[bytes]) -> None:
        """In a directory of its own first, which sees the store's objects: what is cut never was in the store."""
        incoming = tempfile.mkdtemp(prefix="incoming-", dir=self.path)
        try:
            os.makedirs(os.path.join(incoming, "info"))
            write_whole(os.path.join(incoming, "info", "alternates"), b"../objects\n")
            git = Git(self.path, GIT_OBJECT_DIRECTORY=incoming)
            git.feed(chunks, "index-pack", "--stdin", "--fix-thin")
            arrived = os.path.join(incoming, "pack")
            # The index comes last: a pack exists from then on.
            for name in sorted(os.listdir(arrived), key=lambda name: name.endswith(".idx")):
                os.replace(os.path.join(arrived, name), os.path.join(self._packs, name))
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _sweep(self) -> None:
        """Nobody else is here, so whatever is half done will never be done."""
        for name in os.listdir(self.path):
            if name.startswith(("incoming-", "old-", ".")) or name.endswith(".lock"):
                _remove(os.path.join(self.path, name))
        present = set(os.listdir(self._packs))
        for name in present:
            stem, kind = os.path.splitext(name)
            whole = stem + ".pack" in present and stem + ".idx" in present
            if not name.startswith("pack-") or kind == ".keep" or not whole:
                _remove(os.path.join(self._packs, name))

    def _young(self, now: float) -> List[str]:
        """Packs whose references may be yet to come."""
        packs = [os.path.join(self._packs, name) for name in os.listdir(self._packs) if name.endswith(".pack")]
        return [pack for pack in packs if now - os.stat(pack).st_mtime < _GRACE]

    def _repack(self, young: List[str]) -> None:
        """One pack of what the references need, beside the young ones."""
        keeps = [pack[: -len(".pack")] + ".keep" for pack in young]
        try:
            for keep in keeps:
                open(keep, "w").close()
            self._write_shallow()
            Git(self.path).run("-c", "repack.writeBitmaps=false", "repack", "-a", "-d", "-l", "-n", "-q")
        except MissingBase:
            self._empty()
        finally:
            for keep in keeps:
                _remove(keep)

    def _write_shallow(self) -> None:
        """Or git would look for the commits' parents, which no pack has."""
        commits = "".join(commit + "\n" for commit in self._commits.newest())
        write_whole(os.path.join(self.path, "shallow"), commits.encode("ascii"))

    def _empty(self) -> None:
        """The references first: from then on nobody is told that a tree is here."""
        self._trees.forget()
        self._commits.forget()
        for name in ("objects", "config", "HEAD", "shallow"):
            _remove(os.path.join(self.path, name))
        self._make()


@contextmanager
def _words_for_a_full_disk(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError("the host's disk is full: %s: %s" % (error.filename or path, error.strerror)) from None
        raise


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
