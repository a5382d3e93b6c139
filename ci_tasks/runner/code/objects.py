"""git directories that are made by hand: what has to be in them, when a tree was last used, and who may change them.

A reference here is a file of its own, replaced whole, whose time is that of its last use. No git process has to be
started to ask for one, and a killed one leaves no lock on it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
import time
from contextlib import contextmanager
from typing import Iterator, List, Optional

SHA1, SHA256 = "sha1", "sha256"
ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # as on some network file systems


def form_of(object_id: str) -> str:
    """The form of a repository's object names, by one of them."""
    return SHA256 if len(object_id) == 64 else SHA1


class Busy(Exception):
    """Somebody else has held the lock for too long."""


def make_repository(git_dir: str, form: str = "sha1", bare: bool = True) -> bool:
    """Make `git_dir` a repository, or one again. Returns False, and changes nothing, where it is one already whose
    objects have names of another form."""
    for name in ("objects/pack", "objects/info", "refs/heads"):
        os.makedirs(os.path.join(git_dir, name), exist_ok=True)
    config = _config(form, bare)
    has = _read(os.path.join(git_dir, "config"))
    if has != config:
        if has in (_config("sha1", bare), _config("sha256", bare)):
            return False
        write_whole(os.path.join(git_dir, "config"), config)
    head = os.path.join(git_dir, "HEAD")
    if not _read(head):
        write_whole(head, b"ref: refs/heads/ci-tasks\n")
    return True


def _config(form: str, bare: bool) -> bytes:
    version, more = ("1", "[extensions]\n\tobjectformat = sha256\n") if form == "sha256" else ("0", "")
    core = "[core]\n\trepositoryformatversion = %s\n\tbare = %s\n" % (version, str(bare).lower())
    return (core + more + "[gc]\n\tauto = 0\n").encode("ascii")


def write_whole(path: str, content: bytes) -> None:
    handle, beside = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return b""


class Marks:
    """References `refs/NAME/ID` to ID itself, newest first."""

    def __init__(self, git_dir: str, name: str) -> None:
        self.path = os.path.join(git_dir, "refs", name)

    def add(self, object_id: str) -> None:
        """Now is its last use."""
        os.makedirs(self.path, exist_ok=True)
        write_whole(os.path.join(self.path, object_id), object_id.encode("ascii") + b"\n")

    def has(self, object_id: str) -> bool:
        """Also says no to a file that lost its content when the machine went down."""
        return (
            bool(ID.fullmatch(object_id)) and _read(os.path.join(self.path, object_id)) == b"%s\n" % object_id.encode()
        )

    def newest(self) -> List[str]:
        found = []
        for name in self._names():
            try:
                found.append((os.stat(os.path.join(self.path, name)).st_mtime_ns, name))
            except FileNotFoundError:
                pass  # forgotten by somebody else just now
        return [name for _, name in sorted(found, reverse=True) if self.has(name)]

    def forget(self, unused_since: Optional[float] = None) -> int:
        """What was not used since then, everything without a time, and what never was a reference. Returns how many."""
        gone = 0
        for name in self._names():
            path = os.path.join(self.path, name)
            try:
                if unused_since is None or os.stat(path).st_mtime < unused_since or not self.has(name):
                    os.unlink(path)
                    gone += 1
            except FileNotFoundError:
                pass
        return gone

    def keep(self, count: int) -> None:
        """Forget all but the newest."""
        for name in self.newest()[count:]:
            try:
                os.unlink(os.path.join(self.path, name))
            except FileNotFoundError:
                pass

    def _names(self) -> List[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []


@contextmanager
def locked(path: str, exclusive: bool, patience: float) -> Iterator[None]:
    """Hold the lock file `path`, with others who share it or alone. Raises Busy after `patience` seconds."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _wait(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, time.monotonic() + patience, path)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, kind: int, until: float, path: str) -> None:
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= until:
            raise Busy(path)
        time.sleep(0.02)
