"""A host's object store: packs come in, workspaces are checked out of it.

A bare repository of packs. `refs/commits/ID` is a commit whose tree is here in full; the mtime of the file is the time
of its last use. Nothing in here is precious: whatever is damaged is removed, and the client sends it again.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from typing import Iterable, Iterator, List, Optional, Sequence

from ..file_lock import LockTimeout, file_lock
from ..files import replace_file
from ..records import CheckoutPart, Retry
from . import kept_workspace
from . import workspace as workspaces
from .git import DiskFull, HostGit, MissingBase, StoreError
from .idle_workspaces import IdleWorkspaces
from .repositories import RepositoryRefs, make_repository

__all__ = ["MissingBase", "StoreError", "TreeStore"]

_MAX_PACKS = 40  # each of them is copied into every workspace, and searched for every object
_NOT_AS_EXPECTED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)  # somebody has removed or replaced it
_YOUNG_SECONDS = 3600.0  # a pack may lie here so long before something refers to it


class TreeStore:
    """The store in the directory `path`, for object ids of the form `form` (sha1 or sha256).

    Several processes may use it at once. None waits for another for more than `lock_timeout` seconds.
    """

    def __init__(self, path: str, form: str = "sha1", lock_timeout: float = 120.0) -> None:
        self.path = os.path.abspath(path)
        self.form = form
        self.lock_timeout = lock_timeout
        self._commits = RepositoryRefs(self.path, "commits")
        self._packs = os.path.join(self.path, "objects", "pack")

    def receive(self, chunks: Iterable[bytes]) -> None:
        """Store a pack, in chunks of any size. Where `chunks` raises, nothing of the pack stays.

        Raises MissingBase where the pack builds on objects that are not here, and StoreError. `chunks` is read to its
        end all the same, so that what follows it on the wire is not taken for a part of it.
        """
        rest = iter(chunks)
        try:
            with self._locked():
                self._index(rest)
        except StoreError:
            for _ in rest:
                pass
            raise

    def check_out(self, parts: Sequence[CheckoutPart], workspace: str, idle: Optional[IdleWorkspaces] = None) -> None:
        """Replace `workspace` by a checkout of its parts, and verify that it is exactly their trees. It may be made of
        one that is `idle`.

        Raises MissingBase where objects are not here, and StoreError; there is no workspace then.
        """
        with self._locked():
            workspaces.check_out(self._packs, parts, os.path.abspath(workspace), self.form, idle)
            for part in parts:
                self._commits.add(part.commit)

    def update(self, parts: Sequence[CheckoutPart], workspace: str, retry: Retry, run_dir: str) -> None:
        """Bring the `workspace` of an ended run to these parts. Raises as `check_out` does, and NotKept."""
        with self._locked():
            objects = [os.path.join(self.path, "objects")]
            kept_workspace.update_workspace(os.path.abspath(workspace), retry, parts, run_dir, lambda part: objects)
            for part in parts:
                self._commits.add(part.commit)

    def prune(self, days: float, now: Optional[float] = None) -> bool:
        """Forget commits that were not used for `days` days, remove what killed processes left, and repack where that
        helps. Returns False, having done nothing, while other processes use the store."""
        now = time.time() if now is None else now
        if not os.path.isdir(self.path):
            return True
        try:
            with _store_errors(self.path), file_lock(self._lock, exclusive=True, timeout=0):
                self._make()
                self._remove_incomplete()
                forgotten = self._commits.forget(now - days * 86400)
                packs = [os.path.join(self._packs, name) for name in os.listdir(self._packs) if name.endswith(".pack")]
                young = [pack for pack in packs if now - os.stat(pack).st_mtime < _YOUNG_SECONDS]
                if forgotten or len(packs) - len(young) > _MAX_PACKS:
                    self._repack(young)
        except LockTimeout:
            return False
        return True

    @property
    def _lock(self) -> str:
        return os.path.join(self.path, "lock")

    def _make(self) -> None:
        if not make_repository(self.path, self.form):
            raise StoreError("%s has object ids of another form than %s" % (self.path, self.form))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The store is there, and nobody prunes it meanwhile.

        A missing object may be the client's mistake, or a hole in the store. A store with a hole is emptied: then a
        pack that has everything is sure to do. Workspaces have copies of their own."""
        try:
            with self._lock_or_error(exclusive=False):
                self._make()
                yield
        except MissingBase:
            with self._lock_or_error(exclusive=True):
                if not self._is_sound():
                    self._empty()
            raise

    @contextmanager
    def _lock_or_error(self, exclusive: bool) -> Iterator[None]:
        try:
            with _store_errors(self.path):
                os.makedirs(self.path, exist_ok=True)
                with file_lock(self._lock, exclusive, self.lock_timeout):
                    yield
        except LockTimeout:
            raise StoreError("%s was locked by another process for %.0f s" % (self.path, self.lock_timeout)) from None

    def _is_sound(self) -> bool:
        try:
            self._make()
            self._write_shallow()
            HostGit(self.path).run("fsck", "--full", "--no-dangling", "--no-progress")
        except (StoreError, OSError):
            return False
        return True

    def _index(self, chunks: Iterator[bytes]) -> None:
        """In a directory of its own first, which sees the store's objects: a pack that breaks off stays outside."""
        incoming = tempfile.mkdtemp(prefix="incoming-", dir=self.path)
        try:
            os.makedirs(os.path.join(incoming, "info"))
            replace_file(os.path.join(incoming, "info", "alternates"), b"../objects\n")
            git = HostGit(self.path, GIT_OBJECT_DIRECTORY=incoming)
            git.feed(chunks, "index-pack", "--stdin", "--fix-thin")
            arrived = os.path.join(incoming, "pack")
            # The index comes last: a pack exists from then on.
            for name in sorted(os.listdir(arrived), key=lambda name: name.endswith(".idx")):
                os.replace(os.path.join(arrived, name), os.path.join(self._packs, name))
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _remove_incomplete(self) -> None:
        """Under the exclusive lock: what is half done now was left by a killed process."""
        for name in os.listdir(self.path):
            if name.startswith(("incoming-", "old-", ".")) or name.endswith(".lock"):
                _remove(os.path.join(self.path, name))
        present = set(os.listdir(self._packs))
        for name in present:
            stem, kind = os.path.splitext(name)
            whole = stem + ".pack" in present and stem + ".idx" in present
            if not name.startswith("pack-") or kind == ".keep" or not whole:
                _remove(os.path.join(self._packs, name))

    def _repack(self, young: List[str]) -> None:
        """Into one pack of what the references need, beside the young packs."""
        keeps = [pack[: -len(".pack")] + ".keep" for pack in young]
        try:
            for keep in keeps:
                open(keep, "w").close()
            self._write_shallow()
            HostGit(self.path).run("-c", "repack.writeBitmaps=false", "repack", "-a", "-d", "-l", "-n", "-q")
        except MissingBase:
            self._empty()
        finally:
            for keep in keeps:
                _remove(keep)

    def _write_shallow(self) -> None:
        """Without it git would look for the commits' parents, which no pack has."""
        commits = "".join(commit + "\n" for commit in self._commits.newest())
        replace_file(os.path.join(self.path, "shallow"), commits.encode("ascii"))

    def _empty(self) -> None:
        for name in sorted(os.listdir(self.path), reverse=True):  # `refs` first: they say what is here
            if name != os.path.basename(self._lock):
                _remove(os.path.join(self.path, name))
        self._make()


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = "%s: %s" % (error.filename or path, error.strerror)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(message) from None
        if error.errno in _NOT_AS_EXPECTED:
            raise MissingBase(message) from None
        raise


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
