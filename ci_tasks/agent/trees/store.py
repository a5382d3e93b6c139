"""A host's object store: packs come in, workspaces are checked out of it.

A repository of packs, without references. Nothing in here is precious: a store that is damaged or old is emptied, and
the client sends everything again.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from typing import Iterable, Iterator, List, Optional, Sequence

from ..directories import remove_own
from ..file_lock import LockTimeout, file_lock
from ..files import replace_file
from ..records import CheckoutPart, Retry
from . import idle
from .git import DiskFull, Git, MissingBase, StoreError, make_repository
from .workspace import remove, update_workspace

_MAX_PACKS = 40  # each of them is copied into every workspace, and searched for every object
_YOUNG_SECONDS = 3600.0
_NOT_AS_EXPECTED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)  # another process removed or replaced it


class TreeStore:
    """The store in the directory `path`, for object ids of the form `form` (sha1 or sha256).

    Several processes may use it at once. None waits for another for more than `lock_timeout` seconds.
    """

    def __init__(self, path: str, form: str = "sha1", lock_timeout: float = 120.0) -> None:
        self.path, self.form, self.lock_timeout = os.path.abspath(path), form, lock_timeout
        self.git = Git(self.path)
        self._packs = os.path.join(self.path, "objects", "pack")
        self._lock_file = os.path.join(self.path, "lock")
        self._verified = os.path.join(self.path, "verified")  # its mtime: when all packs were

    def receive(self, chunks: Iterable[bytes]) -> None:
        """Store a pack, in chunks of any size. If `chunks` raises, nothing of the pack stays.

        Raises MissingBase if the pack builds on objects that are not here, and StoreError. `chunks` is read to its end
        all the same, so that what follows it on the wire is not taken for a part of it.
        """
        rest = iter(chunks)
        try:
            with self._locked():
                touched = self._touched_packs()
                self._index(rest)
                if not touched:  # git has verified what came
                    open(self._verified, "w").close()
        except StoreError:
            for _ in rest:
                pass
            raise

    def _index(self, chunks: Iterator[bytes]) -> None:
        """In a directory of its own first, which sees the store's objects: a pack that breaks off stays outside."""
        incoming = tempfile.mkdtemp(prefix="incoming-", dir=self.path)
        try:
            os.mkdir(os.path.join(incoming, "info"))
            replace_file(os.path.join(incoming, "info", "alternates"), b"../objects\n")
            Git(self.path, GIT_OBJECT_DIRECTORY=incoming).feed(chunks, "index-pack", "--stdin", "--fix-thin")
            arrived = os.path.join(incoming, "pack")
            for name in sorted(os.listdir(arrived), key=lambda name: name.endswith(".idx")):  # with it a pack exists
                os.replace(os.path.join(arrived, name), os.path.join(self._packs, name))
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def check_out(self, parts: Sequence[CheckoutPart], workspace: str, checkout: str = "") -> None:
        """Replace `workspace` by a checkout of its parts, and prove that it is exactly their tree. It may be made of an
        idle one of `checkout`, the path where they come from.

        Raises MissingBase if objects are not here, and StoreError; there is no workspace then.
        """
        with self._locked():
            self._verify()
            idle.check_out(self.path, parts, os.path.abspath(workspace), self._lend, checkout)

    def update(self, parts: Sequence[CheckoutPart], workspace: str, retry: Retry, run_dir: str) -> None:
        """Bring the `workspace` of an ended run to these parts. Raises as `check_out` does, and NotKept."""
        with self._locked():
            self._verify()
            update_workspace(self.path, parts, os.path.abspath(workspace), retry, run_dir, self._lend)

    def prune(self, days: float, now: Optional[float] = None) -> bool:
        """Remove what killed processes left; and unless a pack has just come, which no run has checked out yet, empty a
        store that is older than `days` days, and make one pack of many. Returns False, having done nothing, while other
        processes use the store."""
        now = time.time() if now is None else now
        try:
            with self._lock(exclusive=True, timeout=0):
                for name in os.listdir(self.path):
                    if name.startswith("incoming-"):
                        remove_own(os.path.join(self.path, name))
                packs = [os.path.join(self._packs, name) for name in os.listdir(self._packs) if name.endswith(".pack")]
                if any(now - os.stat(pack).st_mtime < _YOUNG_SECONDS for pack in packs):
                    return True
                if os.stat(os.path.join(self.path, "config")).st_mtime < now - days * 86400:
                    self._empty()
                elif len(packs) > _MAX_PACKS:
                    self.git.run("repack", "-a", "-d", "-k", "-q")
        except LockTimeout:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The store is there, and is not pruned meanwhile. One that is not complete is emptied: then a pack that has
        everything is sure to do. Workspaces have copies of their own."""
        try:
            try:
                with self._lock(exclusive=False, timeout=self.lock_timeout):
                    yield
            except MissingBase:
                with file_lock(self._lock_file, exclusive=True, timeout=self.lock_timeout):
                    self._empty()
                raise
        except LockTimeout:
            raise StoreError("%s was locked by another process for %.0f s" % (self.path, self.lock_timeout)) from None

    @contextmanager
    def _lock(self, exclusive: bool, timeout: float) -> Iterator[None]:
        try:
            os.makedirs(self.path, exist_ok=True)
            with file_lock(self._lock_file, exclusive, timeout):
                make_repository(self.path, self.form)
                yield
        except OSError as error:
            message = "%s: %s" % (error.filename or self.path, error.strerror)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(message) from None
            if error.errno in _NOT_AS_EXPECTED:
                raise MissingBase(message) from None
            raise

    def _touched_packs(self) -> List[str]:
        """The indexes of packs that changed since all were verified."""
        since = os.lstat(self._verified).st_mtime_ns if os.path.exists(self._verified) else 0
        paths = [os.path.join(self._packs, name) for name in os.listdir(self._packs)]
        touched = [path for path in paths if path.endswith((".pack", ".idx")) and os.lstat(path).st_ctime_ns > since]
        return sorted({os.path.splitext(path)[0] + ".idx" for path in touched})

    def _verify(self) -> None:
        touched = self._touched_packs()
        if touched:
            self.git.run("verify-pack", *touched)
            open(self._verified, "w").close()

    def _lend(self, part: CheckoutPart, git_dir: str) -> None:
        """Copies, not links: what a job writes to its own repository would be what the next one is checked out of."""
        replace_file(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
        if part.path:
            up = "/".join([".."] * (part.path.count("/") + 3))
            replace_file(os.path.join(git_dir, "objects/info/alternates"), os.fsencode(up) + b"/.git/objects\n")
            return
        for name in os.listdir(self._packs):
            if name.startswith("pack-") and name.endswith((".pack", ".idx", ".rev")):
                copy = shutil.copyfile(os.path.join(self._packs, name), os.path.join(git_dir, "objects/pack", name))
                os.chmod(copy, 0o444)

    def _empty(self) -> None:
        for name in os.listdir(self.path):
            if name != "lock":
                remove(os.path.join(self.path, name))
        make_repository(self.path, self.form)
