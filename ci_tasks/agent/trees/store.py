"""A host's object store: packs come in, workspaces are checked out of it.

A repository of packs, without references. Nothing in here is precious: a store that is damaged or old is emptied, and
the client sends everything again.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager, suppress
from typing import Iterable, Iterator, Optional, Sequence

from ..files import LockTimeout, file_lock, replace_file
from ..records import CheckoutPart, Retry
from .git import FULL_ERRORS, DiskFull, Git, MissingBase, StoreError, make_repository
from .workspace import check_out, remove, update_workspace

_MAX_FILES = 80  # two of a pack; each of them is copied into every workspace, and searched for every object


class TreeStore:
    """The store in the directory `path`, for object ids of the form `form` (sha1 or sha256).

    Several processes may use it at once. None waits for another for more than `lock_timeout` seconds.
    """

    def __init__(self, path: str, form: str = "sha1", lock_timeout: float = 120.0) -> None:
        self.path, self.form, self.lock_timeout = os.path.abspath(path), form, lock_timeout
        self._packs = os.path.join(self.path, "objects", "pack")
        self._lock_file = os.path.join(self.path, "lock")

    def receive(self, chunks: Iterable[bytes]) -> None:
        """Store a pack, in chunks of any size. If `chunks` raises, nothing of the pack stays.

        Raises MissingBase if the pack builds on objects that are not here, and StoreError. `chunks` is read to its end
        all the same, so that what follows it on the wire is not taken for a part of it.
        """
        rest = iter(chunks)
        try:
            with self._locked():
                Git(self.path).feed(rest, "index-pack", "--stdin", "--fix-thin")
        except BaseException as error:
            with suppress(LockTimeout), file_lock(self._lock_file, exclusive=True, timeout=0):
                self._remove_partial_packs()
            for _ in rest if isinstance(error, StoreError) else ():
                pass
            raise

    def check_out(self, parts: Sequence[CheckoutPart], workspace: str, checkout: str = "") -> None:
        """Replace `workspace` by a checkout of its parts, and prove that it is exactly their tree. It may be made of an
        idle one of `checkout`, the path where they come from.

        Raises MissingBase if objects are not here, and StoreError; there is no workspace then.
        """
        with self._locked():
            self._verify()
            check_out(self.path, parts, os.path.abspath(workspace), self._lend, checkout)

    def update(self, parts: Sequence[CheckoutPart], workspace: str, retry: Retry, run_dir: str) -> None:
        """Bring the `workspace` of an ended run to these parts. Raises as `check_out` does, and NotKept."""
        with self._locked():
            self._verify()
            update_workspace(self.path, parts, os.path.abspath(workspace), retry, run_dir, self._lend)

    def prune(self, days: float, now: Optional[float] = None) -> bool:
        """Remove what killed processes left, empty a store that is older than `days` days, and make one pack of many.
        Returns False, having done nothing, while other processes use the store."""
        os.makedirs(self.path, exist_ok=True)
        try:
            with file_lock(self._lock_file, exclusive=True, timeout=0):
                make_repository(self.path, self.form)
                self._remove_partial_packs()
                oldest = (time.time() if now is None else now) - days * 86400
                if os.stat(os.path.join(self.path, "config")).st_mtime < oldest:
                    self._empty()
                elif len(os.listdir(self._packs)) > _MAX_FILES:
                    Git(self.path).run("repack", "-a", "-d", "-k", "-q")
        except LockTimeout:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The store is there, and is not pruned meanwhile. One that is not complete is emptied: then a pack that has
        everything is sure to do. Workspaces have copies of their own."""
        try:
            try:
                os.makedirs(self.path, exist_ok=True)
                with file_lock(self._lock_file, exclusive=False, timeout=self.lock_timeout):
                    make_repository(self.path, self.form)
                    yield
            except OSError as error:  # of a store that is damaged, too
                is_full = error.errno in FULL_ERRORS
                if not (is_full or error.filename):  # the link's
                    raise
                message = "%s: %s" % (error.filename or self.path, error.strerror)
                raise (DiskFull if is_full else MissingBase)(message) from None
        except MissingBase:
            with file_lock(self._lock_file, exclusive=True, timeout=self.lock_timeout):
                self._empty()
            raise
        except LockTimeout:
            raise StoreError("%s was locked by another process for %.0f s" % (self.path, self.lock_timeout)) from None

    def _verify(self) -> None:
        """Let git read the packs that changed since it read all of them."""
        note = os.path.join(self.path, "verified")
        since = os.lstat(note).st_mtime_ns if os.path.exists(note) else 0
        paths = [os.path.join(self._packs, name) for name in os.listdir(self._packs)]
        changed = {os.path.splitext(path)[0] + ".idx" for path in paths if os.lstat(path).st_ctime_ns > since}
        if changed:
            Git(self.path).run("verify-pack", *sorted(changed))
            open(note, "w").close()

    def _lend(self, part: CheckoutPart, git_dir: str) -> None:
        """Copies, not links: what a job writes to its own repository would be what the next one is checked out of."""
        replace_file(os.path.join(git_dir, "shallow"), part.commit.encode("ascii") + b"\n")
        for name in () if part.path else os.listdir(self._packs):
            copy = shutil.copyfile(os.path.join(self._packs, name), os.path.join(git_dir, "objects/pack", name))
            os.chmod(copy, 0o444)

    def _remove_partial_packs(self) -> None:
        for name in os.listdir(self._packs):
            if name.startswith("tmp_"):
                os.unlink(os.path.join(self._packs, name))

    def _empty(self) -> None:
        for name in set(os.listdir(self.path)) - {"lock"}:
            remove(os.path.join(self.path, name))
        make_repository(self.path, self.form)
