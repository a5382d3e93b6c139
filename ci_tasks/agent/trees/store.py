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
from contextlib import contextmanager, suppress
from typing import Iterable, Iterator, List, Optional, Sequence

from ..file_lock import LockTimeout, file_lock
from ..files import replace_file
from ..records import CheckoutPart, Retry
from . import kept_workspace
from . import workspace as workspaces
from .git import Damaged, DiskFull, HostGit, MissingBase, StoreError
from .idle_workspaces import IdleWorkspaces
from .repositories import make_repository

__all__ = ["MissingBase", "StoreError", "TreeStore"]

_MAX_PACKS = 40  # each of them is copied into every workspace, and searched for every object
_YOUNG_SECONDS = 3600.0
_NOT_AS_EXPECTED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)  # another process removed or replaced it


class TreeStore:
    """The store in the directory `path`, for object ids of the form `form` (sha1 or sha256).

    Several processes may use it at once. None waits for another for more than `lock_timeout` seconds.
    """

    def __init__(self, path: str, form: str = "sha1", lock_timeout: float = 120.0) -> None:
        self.path = os.path.abspath(path)
        self.form = form
        self.lock_timeout = lock_timeout
        self._lock = os.path.join(self.path, "lock")
        self._packs = os.path.join(self.path, "objects", "pack")
        self._commits = os.path.join(self.path, "refs", "commits")
        self._verified = os.path.join(self.path, "verified")  # its mtime: when all packs were

    def receive(self, chunks: Iterable[bytes]) -> None:
        """Store a pack, in chunks of any size. Where `chunks` raises, nothing of the pack stays.

        Raises MissingBase where the pack builds on objects that are not here, and StoreError. `chunks` is read to its
        end all the same, so that what follows it on the wire is not taken for a part of it.
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
            os.makedirs(os.path.join(incoming, "info"))
            replace_file(os.path.join(incoming, "info", "alternates"), b"../objects\n")
            git = HostGit(self.path, GIT_OBJECT_DIRECTORY=incoming)
            git.feed(chunks, "index-pack", "--stdin", "--fix-thin")
            arrived = os.path.join(incoming, "pack")
            for name in sorted(os.listdir(arrived), key=lambda name: name.endswith(".idx")):  # with it a pack exists
                os.replace(os.path.join(arrived, name), os.path.join(self._packs, name))
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def check_out(self, parts: Sequence[CheckoutPart], workspace: str, idle: Optional[IdleWorkspaces] = None) -> None:
        """Replace `workspace` by a checkout of its parts, and prove that it is exactly their tree. It may be made of
        one that is `idle`.

        Raises MissingBase where objects are not here, and StoreError; there is no workspace then.
        """
        parts, workspace = workspaces.check_parts(parts), os.path.abspath(workspace)
        with self._locked():
            self._verify()
            if idle is None or not idle.check_out(self.path, parts, workspace, self._lend):
                workspaces.check_out(self.path, parts, workspace, self._lend)
            self._note(parts)

    def update(self, parts: Sequence[CheckoutPart], workspace: str, retry: Retry, run_dir: str) -> None:
        """Bring the `workspace` of an ended run to these parts. Raises as `check_out` does, and NotKept."""
        with self._locked():
            self._verify()
            objects = [os.path.join(self.path, "objects")]
            kept_workspace.update_workspace(os.path.abspath(workspace), retry, parts, run_dir, lambda part: objects)
            self._note(parts)

    def prune(self, days: float, now: Optional[float] = None) -> bool:
        """Remove what killed processes left; and unless a pack has just come, which no run has checked out yet, forget
        commits that were not used for `days` days, and repack where that helps. Returns False, having done nothing,
        while other processes use the store."""
        now = time.time() if now is None else now
        if not os.path.isdir(self.path):
            return True
        try:
            with _store_errors(self.path), file_lock(self._lock, exclusive=True, timeout=0):
                self._make()
                for name in os.listdir(self.path):
                    if name.startswith("incoming-"):
                        workspaces.remove(os.path.join(self.path, name))
                names = set(os.listdir(self._packs))
                stems = {name[: -len(".pack")] for name in names if name.endswith(".pack")}
                whole = {stem for stem in stems if stem.startswith("pack-") and stem + ".idx" in names}
                for name in names:
                    if os.path.splitext(name)[0] not in whole:
                        workspaces.remove(os.path.join(self._packs, name))
                packs = [os.path.join(self._packs, stem + ".pack") for stem in whole]
                if all(now - os.stat(pack).st_mtime >= _YOUNG_SECONDS for pack in packs):
                    paths = [os.path.join(self._commits, name) for name in self.commits()]
                    forgotten = [path for path in paths if os.stat(path).st_mtime < now - days * 86400]
                    for path in forgotten:
                        os.unlink(path)
                    if forgotten or len(packs) > _MAX_PACKS:
                        self._repack()
        except LockTimeout:
            return False
        return True

    def commits(self) -> List[str]:
        """Those that were checked out, the last used first."""
        with suppress(FileNotFoundError):
            names = os.listdir(self._commits)
            return sorted(names, key=lambda name: -os.stat(os.path.join(self._commits, name)).st_mtime_ns)
        return []

    def _note(self, parts: Iterable[CheckoutPart]) -> None:
        os.makedirs(self._commits, exist_ok=True)
        for part in parts:
            replace_file(os.path.join(self._commits, part.commit), part.commit.encode("ascii") + b"\n")

    def _make(self) -> None:
        if not make_repository(self.path, self.form):
            raise StoreError("%s has object ids of another form than %s" % (self.path, self.form))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The store is there, and is not pruned meanwhile. One that is not complete is emptied: then a pack that has
        everything is sure to do. Workspaces have copies of their own."""
        try:
            with self._lock_or_error(exclusive=False):
                self._make()
                yield
        except MissingBase as error:
            with self._lock_or_error(exclusive=True):
                if isinstance(error, Damaged) or self._touched_packs():
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

    def _touched_packs(self) -> List[str]:
        """The indexes of packs that changed since all were verified."""
        since = os.lstat(self._verified).st_mtime_ns if os.path.exists(self._verified) else 0
        paths = [
            os.path.join(self._packs, name) for name in os.listdir(self._packs) if name.endswith((".pack", ".idx"))
        ]
        return sorted({os.path.splitext(path)[0] + ".idx" for path in paths if os.lstat(path).st_ctime_ns > since})

    def _verify(self) -> None:
        touched = self._touched_packs()
        if touched:
            try:
                HostGit(self.path).run("verify-pack", *touched)
            except StoreError as error:
                raise Damaged(str(error)) from None
            open(self._verified, "w").close()

    def _lend(self, part: CheckoutPart, git_dir: str) -> None:
        """Copies, not links: what a job writes to its own repository would be what the next one is checked out of."""
        replace_file(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
        if part.path:
            up = "/".join([".."] * (part.path.count("/") + 3))
            replace_file(os.path.join(git_dir, "objects/info/alternates"), os.fsencode(up) + b"/.git/objects\n")
            return
        into = os.path.join(git_dir, "objects", "pack")
        for name in sorted(os.listdir(self._packs)):
            if name.startswith("pack-") and name.endswith((".pack", ".idx", ".rev")):
                shutil.copyfile(os.path.join(self._packs, name), os.path.join(into, name))
                os.chmod(os.path.join(into, name), 0o444)

    def _repack(self) -> None:
        """Into one pack of what the commits need. Without `shallow`, git would look for their parents."""
        replace_file(os.path.join(self.path, "shallow"), "".join(name + "\n" for name in self.commits()).encode())
        try:
            HostGit(self.path).run("-c", "repack.writeBitmaps=false", "repack", "-a", "-d", "-l", "-n", "-q")
        except MissingBase:
            self._empty()

    def _empty(self) -> None:
        for name in sorted(os.listdir(self.path), reverse=True):  # `refs` first: they say what is here
            if name != os.path.basename(self._lock):
                workspaces.remove(os.path.join(self.path, name))
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
            raise Damaged(message) from None
        raise
