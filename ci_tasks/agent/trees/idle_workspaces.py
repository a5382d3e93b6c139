"""Workspaces that no run uses, for the next runs: there only the files that differ are written.

Each has a slot: a directory with the index of what was checked out, which is outside of every workspace. A run takes
the workspace out of its slot, and gives it back, by one rename: no two runs have the same one. Whatever a job, or
another process of the account, makes of an idle workspace or its index decides only how much is written: what cannot be
made the tree, or is not proven to be it, is removed, and a fresh one made.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from typing import List, Sequence

from ..directories import mounted_below, remove_own
from ..files import read_file, replace_file
from ..quick_dataclass import dataclass
from ..records import CheckoutPart
from .git import DiskFull, HostGit, StoreError
from .repositories import form_of, make_repository
from .workspace import Lend, check_out, make_plain, remove, write_workspace, written_ns

_MAX_IDLE = 2  # of a checkout
_SLOT = re.compile(r"[0-9a-f]{12}-[0-9a-f]{16}")
_PROC = "/proc"
_LONGEST_NOTE = 1 << 12
_REMOVED = "-removed"
_YOUNG_S = 86400.0  # a slot may be without a workspace for so long before a run gives it back


@dataclass(frozen=True)
class IdleWorkspaces:
    """Those in the directory `path`, in slots that begin with their `key`, see `key_of`. `note` is the file in which a
    run says which slot its workspace belongs to."""

    path: str
    key: str
    note: str

    def check_out(self, store: str, parts: Sequence[CheckoutPart], workspace: str, lend: Lend) -> bool:
        """Make `workspace` the parts: of an idle one, or else fresh, in a new slot. Raises as `workspace.check_out`."""
        try:
            remove(workspace)
            os.makedirs(os.path.dirname(workspace), exist_ok=True)
            slot = self.take(workspace)
            if slot:
                with suppress(StoreError, OSError):
                    write_workspace(store, parts, workspace, os.path.join(slot, "index"), lend)
                    replace_file(self.note, os.fsencode(slot))
                    return True
                os.rename(workspace, os.path.join(slot, "unusable"))  # there may be what cannot be removed
                _remove(slot)
            slot = os.path.join(self.path, "%s-%s" % (self.key, os.urandom(8).hex()))
            remove(workspace)
            make_repository(slot, form_of(parts[0].tree))
        except (StoreError, OSError):
            return False
        try:
            check_out(store, parts, workspace, lend, os.path.join(slot, "index"))
        except BaseException as error:
            remove_own(slot)
            if isinstance(error, DiskFull) and self.prune(time.time()):
                return False
            raise
        with suppress(OSError):  # without it, the workspace is removed after the run
            replace_file(self.note, os.fsencode(slot))
        return True

    def take(self, workspace: str) -> str:
        """Make the newest one `workspace`. Returns its slot, "" where there is none."""
        for slot in reversed(self._idle()):
            with suppress(OSError):  # another run has taken it
                if _is_plain(os.path.join(slot, "workspace")):
                    os.rename(os.path.join(slot, "workspace"), workspace)
                    return slot
        return ""

    def prune(self, unused_since: float) -> bool:
        """Remove those of any checkout that were not used since then. Returns whether there were any."""
        removed = False
        for slot in self._slots(""):
            is_idle = os.path.lexists(os.path.join(slot, "workspace"))
            if _mtime(slot) < (unused_since if is_idle else min(unused_since, time.time() - _YOUNG_S)):
                removed |= _remove(slot) and is_idle
        return removed

    def noted(self) -> str:
        """The name of the slot that the note names, "" for none. A job can write what it likes there."""
        try:
            return os.path.basename(os.fsdecode(read_file(self.note, _LONGEST_NOTE)))
        except OSError:
            return ""

    def forget(self, name: str) -> None:
        """Remove the slot of a run that is gone, and its workspace with it."""
        for slot in self._slots(name) if name else []:
            if os.path.basename(slot) == name and not os.path.lexists(os.path.join(slot, "workspace")):
                _remove(slot)

    def _idle(self) -> List[str]:
        """The slots of this checkout whose workspace no run has, the newest last."""
        slots = (slot for slot in self._slots(self.key) if not slot.endswith(_REMOVED))
        return [slot for slot in slots if os.path.lexists(os.path.join(slot, "workspace"))]

    def _slots(self, key: str) -> List[str]:
        try:
            names = [name for name in os.listdir(self.path) if name.startswith(key) and _SLOT.match(name)]
        except OSError:
            return []
        return sorted((os.path.join(self.path, name) for name in names), key=_mtime)


def key_of(checkout: str) -> str:
    """Of a checkout, by its path where it comes from: what is checked out next from there is most alike."""
    return hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]


def release(workspace: str, note: str) -> None:
    """Let another run have the workspace of an ended one, without what its job has made there. Raises StoreError,
    OSError, ValueError; the workspace is where it was then."""
    slot = os.fsdecode(read_file(note, _LONGEST_NOTE))
    path, name = os.path.split(slot)
    if not _SLOT.fullmatch(name):
        raise ValueError("%r is no slot" % slot)
    if not _is_plain(workspace):
        raise StoreError("a file system is mounted in it, or it is no directory any more")
    if _is_used(os.path.realpath(workspace)):
        raise StoreError("a process uses it")
    listed = HostGit(slot).run("ls-files", "-z")
    make_plain(workspace, set(listed.split(b"\0")) - {b""}, written_ns(os.path.join(slot, "index")))
    os.utime(slot)
    os.rename(workspace, os.path.join(slot, "workspace"))
    for old in IdleWorkspaces(path, name[:12], note)._idle()[:-_MAX_IDLE]:
        _remove(old)


def _remove(slot: str) -> bool:
    """Whether it is gone."""
    if mounted_below(os.path.realpath(slot)):
        return False
    removed = slot if slot.endswith(_REMOVED) else slot + _REMOVED
    with suppress(OSError):  # another process has
        os.rename(slot, removed)  # no run takes it any more
        return not remove_own(removed)
    return False


def _is_plain(directory: str) -> bool:
    """A directory, in which nothing is mounted."""
    return os.path.isdir(directory) and not os.path.islink(directory) and not mounted_below(os.path.realpath(directory))


def _is_used(path: str) -> bool:
    """Whether a process works in the directory, has a file of it open, or has it mounted, as a container that nobody
    knows of has; as far as this account may look."""
    mounted = "/".join(path.split("/")[-3:])  # what comes before depends on the root of its file system
    for process in os.listdir(_PROC) if os.path.isdir(_PROC) else ():
        directory = os.path.join(_PROC, process)
        with suppress(OSError, ValueError):  # it has ended, is another account's, or is no process
            int(process)
            with open(os.path.join(directory, "mountinfo"), encoding="utf-8", errors="surrogateescape") as source:
                if mounted in source.read():
                    return True
            files = (os.path.join(directory, "fd", name) for name in os.listdir(os.path.join(directory, "fd")))
            links = map(os.readlink, (os.path.join(directory, "cwd"), *files))
            if any((link + "/").startswith(path + "/") for link in links):
                return True
    return False


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
