"""Workspaces that no run uses, for the next runs: there only the files that differ are written.

A file stays if the new tree has it as the one before had it, the job has not touched it, and but for its bytes it is as
a new one: mode, owner, group, one link, no extended attributes. Whatever else is there (each `.git` too, with its
settings, hooks and index) is removed before git is started. What proves the tree is the hash of every file afterwards,
as always; where it is another, or anything fails, the workspace is removed, and a fresh one made. So whatever a job, or
another process of the account, makes of an idle workspace or of a note decides only how much is written.

A run gets a workspace, and gives it back, by one rename: no two runs have the same one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from contextlib import suppress
from typing import Collection, Dict, List, Mapping, Optional, Tuple

from ..directories import mounted_below, remove_own
from ..files import read_file, replace_file
from ..quick_dataclass import dataclass
from ..records import CheckoutPart
from .git import HostGit, StoreError
from .objects import HASHES, LINK, SUBMODULE, TreeEntries, TreeEntry
from .repositories import form_of

_MAX_IDLE = 8
_MAX_NOTE = 1 << 26  # bytes
_KEY = re.compile(r"[0-9a-f]{12}")
_NOTE = os.path.join(".git", "checked_out")  # in an idle workspace
_PROC = "/proc"
_REMOVED = "removed-"
_SELINUX = "security.selinux"  # containers give files another label
_CONVERTING = ("eol", "ident", "working-tree-encoding")  # attributes with which a file is not its blob, byte for byte
_NOT_CONVERTING = (b"unspecified", b"unset", b"lf")
_INDEX_NUMBERS = struct.Struct(">10L")
_LOW = 0xFFFFFFFF  # what of a number an index keeps
_AGE = 2.0  # seconds; git reads files again that are not older than its index, and some file systems count in seconds


class NotReusable(StoreError):
    """The workspace cannot be brought to another tree; the message says why."""


@dataclass(frozen=True)
class IdleWorkspaces:
    """Those in the directory `path`, in names that begin with their `key`, see `key_of`. `note` is the file in which a
    run says what its workspace was checked out as."""

    path: str
    key: str
    note: str

    def take(self, workspace: str) -> Optional[TreeEntries]:
        """Make the newest one `workspace`. Returns what it was checked out as, None where there is none."""
        for name in reversed(self._oldest_first(self.key + "-")):
            with suppress(OSError, ValueError):  # another run has taken it
                if _is_plain(os.path.join(self.path, name)):
                    os.rename(os.path.join(self.path, name), workspace)
                    return _read_note(os.path.join(workspace, _NOTE))[2]
        return None

    def write_note(self, listings: Mapping[str, TreeEntries]) -> None:
        """By the entries of each part."""
        lines = [os.fsencode(self.path), self.key.encode("ascii")]
        for part, entries in listings.items():
            above = _prefix(part)
            lines += [
                b"%o %s %s%s" % (mode, name.encode("ascii"), above, path) for path, (mode, name) in entries.items()
            ]
        replace_file(self.note, b"\0".join(lines))

    def prune(self, unused_since: float) -> bool:
        """Remove those of any checkout that were not used since then. Returns whether there were any."""
        old = [name for name in self._oldest_first("") if _mtime(os.path.join(self.path, name)) < unused_since]
        return [self._remove(name) for name in old].count(True) > 0

    def _add(self, workspace: str) -> None:
        os.makedirs(self.path, exist_ok=True)
        os.rename(workspace, tempfile.mkdtemp(prefix=self.key + "-", dir=self.path))
        for name in self._oldest_first("")[:-_MAX_IDLE]:
            self._remove(name)

    def _remove(self, name: str) -> bool:
        path = os.path.join(self.path, name)
        removed = path if name.startswith(_REMOVED) else os.path.join(self.path, _REMOVED + name)
        if mounted_below(os.path.realpath(path)):
            return False
        with suppress(OSError):  # another process has
            os.rename(path, removed)  # nobody takes it any more
            return not remove_own(removed)
        return False

    def _oldest_first(self, prefix: str) -> List[str]:
        try:
            names = os.listdir(self.path)
        except OSError:
            return []
        ours = [name for name in names if name.startswith(prefix) and (_KEY.match(name) or name.startswith(_REMOVED))]
        return sorted(ours, key=lambda name: _mtime(os.path.join(self.path, name)))


def _prefix(part: str) -> bytes:
    """What comes before a path of the part."""
    return os.fsencode(part) + b"/" if part else b""


def key_of(checkout: str) -> str:
    """Of a checkout, by its path where it comes from: what is checked out next from there is most alike."""
    return hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]


def release(workspace: str, note: str) -> None:
    """Let another run have the workspace of an ended one, without what its job has made there. Raises StoreError,
    OSError, ValueError; the workspace is where it was then."""
    if not _is_plain(workspace):
        raise NotReusable("a file system is mounted in it, or it is no directory any more")
    if _is_used(os.path.realpath(workspace)):
        raise NotReusable("a process uses it")
    path, key, entries = _read_note(note)
    remove_others(os.fsencode(workspace), entries, os.lstat(note).st_mtime_ns)
    os.mkdir(os.path.dirname(os.path.join(workspace, _NOTE)))
    os.rename(note, os.path.join(workspace, _NOTE))
    IdleWorkspaces(path, key, note)._add(workspace)


def _read_note(note: str) -> Tuple[str, str, TreeEntries]:
    path, key, *lines = read_file(note, _MAX_NOTE).split(b"\0")
    if not _KEY.fullmatch(os.fsdecode(key)):
        raise ValueError("%r is no key" % key)
    fields = (line.split(b" ", 2) for line in lines)
    entries = {name: TreeEntry(int(mode, 8), object_id.decode("ascii")) for mode, object_id, name in fields}
    return os.fsdecode(path), os.fsdecode(key), entries


def _is_plain(path: str) -> bool:
    """A directory in which no file system is mounted."""
    return os.path.isdir(path) and not os.path.islink(path) and not mounted_below(os.path.realpath(path))


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


def keep_same_files(git: HostGit, part: CheckoutPart, entries: TreeEntries, before: TreeEntries) -> Collection[bytes]:
    """Leave in git's work tree only files that seem to be as a checkout of the part makes them, with an index that has
    them. `before`: what the workspace was checked out as. Returns the files that a checkout converts; none is left.
    Raises StoreError, OSError."""
    above = _prefix(part.path)
    same = {path: entry for path, entry in entries.items() if before.get(above + path) == entry}
    converted = _converted(git, part.tree, entries)
    for path in converted:
        same.pop(path, None)
    kept = remove_others(os.fsencode(git.directory), same, keep=b".git")
    with open(os.path.join(git.env["GIT_DIR"], "index"), "wb") as out:
        out.write(_index({path: (entries[path], info) for path, info in kept.items()}, form_of(part.tree)))
    return converted


def _converted(git: HostGit, tree: str, paths: Collection[bytes]) -> Collection[bytes]:
    if not any(path.rpartition(b"/")[2] == b".gitattributes" for path in paths):
        return ()
    git.run("read-tree", tree)
    output = git.run("check-attr", "-z", "--cached", "--stdin", *_CONVERTING, input=b"\0".join(paths))
    fields = output.split(b"\0")
    return {fields[at] for at in range(0, len(fields) - 2, 3) if fields[at + 2] not in _NOT_CONVERTING}


def _index(files: Mapping[bytes, Tuple[TreeEntry, os.stat_result]], form: str) -> bytes:
    """An index of git's (gitformat-index, version 2) in which these files are unchanged since they were checked out."""
    parts = [b"DIRC" + struct.pack(">LL", 2, len(files))]
    for path, (entry, info) in sorted(files.items()):
        changed, changed_ns = divmod(info.st_ctime_ns, 10**9)
        written, written_ns = divmod(info.st_mtime_ns, 10**9)
        device, inode, size = info.st_dev & _LOW, info.st_ino & _LOW, info.st_size & _LOW
        times = changed & _LOW, changed_ns, written & _LOW, written_ns
        numbers = _INDEX_NUMBERS.pack(*times, device, inode, entry.mode, info.st_uid, info.st_gid, size)
        line = b"".join((numbers, bytes.fromhex(entry.id), min(len(path), 0xFFF).to_bytes(2, "big"), path))
        parts.append(line + bytes(8 - len(line) % 8))
    content = b"".join(parts)
    return content + HASHES[form](content).digest()


def remove_others(
    top: bytes, entries: TreeEntries, made: Optional[int] = None, keep: bytes = b""
) -> Dict[bytes, os.stat_result]:
    """Remove from the directory `top` all but `keep` and those files and links of `entries` that are as new ones but
    for their bytes, and have not changed since `made`, in ns. Returns these. Raises NotReusable, OSError."""
    new = _new_directory(os.path.dirname(top))
    now = time.time() - _AGE
    if not _ordinary(top, stat.S_IFDIR, new, now):
        raise NotReusable("%s is not as a new directory" % os.fsdecode(top))
    modes = {path: entry.mode for path, entry in entries.items() if entry.mode != SUBMODULE}
    modes.update(dict.fromkeys(_parents(modes), stat.S_IFDIR))
    kept = {}
    unread = [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(top, above)) as listing:
            found = list(listing)
        for item in found:
            path = above + item.name
            if path == keep:
                continue
            mode = modes.get(path)
            info = mode and _ordinary(item.path, mode, new, now, made)
            if not info:
                problem = remove_own(os.fsdecode(item.path))
                if problem:
                    raise NotReusable(problem)
            elif mode == stat.S_IFDIR:
                unread.append(path + b"/")
            else:
                kept[path] = info
    return kept


def _parents(files: Collection[bytes]) -> Collection[bytes]:
    parents = set()
    for path in files:
        above = path.rpartition(b"/")[0]
        while above and above not in parents:
            parents.add(above)
            above = above.rpartition(b"/")[0]
    return parents


def _new_directory(above: bytes) -> os.stat_result:
    """What a directory is like that is made there."""
    parent = tempfile.mkdtemp(dir=above)
    try:
        os.mkdir(os.path.join(parent, b"new"))
        return os.lstat(os.path.join(parent, b"new"))
    finally:
        shutil.rmtree(parent)


def _ordinary(
    path: bytes, git_mode: int, new: os.stat_result, now: float, made: Optional[int] = None
) -> Optional[os.stat_result]:
    """The state of a directory, file or link if a new one of this mode would be the same but for its bytes and times.
    It gets the time `now`, which an immutable one does not take."""
    info = os.lstat(path)
    if (info.st_uid, info.st_gid, info.st_dev) != (new.st_uid, new.st_gid, new.st_dev):
        return None
    if git_mode == stat.S_IFDIR:
        ordinary = info.st_mode == new.st_mode
    elif info.st_nlink != 1 or (made is not None and info.st_ctime_ns > made):
        return None
    elif git_mode == LINK:
        ordinary = stat.S_ISLNK(info.st_mode)
    else:
        permissions = stat.S_IMODE(new.st_mode) & (0o777 if git_mode & 0o100 else 0o666)
        ordinary = info.st_mode == stat.S_IFREG | permissions
    try:
        if not ordinary or any(name != _SELINUX for name in os.listxattr(path, follow_symlinks=False)):
            return None
        os.utime(path, (now, now), follow_symlinks=False)
    except (OSError, AttributeError):  # another system than Linux
        return None
    return os.lstat(path)
