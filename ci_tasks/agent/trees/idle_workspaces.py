"""Workspaces that no run uses, for the next runs: there only the files that differ are written.

A file stays if the new tree has it as the one before had it, the job has not touched it, and it is as a new one: its
bytes, mode, owner, group, one link, no extended attributes. Whatever else is there (each `.git` too, with its settings,
hooks and index) is removed before git is started, and what is missing then is written. What proves the tree is the hash
of every file afterwards, as always. A file that is another one then is written anew; where that does not help, or
anything fails, the workspace is removed, and a fresh one made. So whatever a job, or another process of the account,
makes of an idle workspace or of a note decides only how much is written.

A run gets a workspace, and gives it back, by one rename: no two runs have the same one.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import tempfile
import time
from contextlib import suppress
from typing import Collection, FrozenSet, List, Mapping, Optional, Tuple

from ..directories import mounted_below, remove_own
from ..files import read_file, replace_file
from ..quick_dataclass import dataclass
from ..records import CheckoutPart
from .file_hashes import HASHES, LINK, NewFile, index_entry
from .git import HostGit, StoreError
from .objects import SUBMODULE, ObjectReader, TreeEntries, TreeEntry
from .verify import check_directory, parents_of, raise_if_different

_MAX_IDLE = 8
_MAX_NOTE = 1 << 26  # bytes
_KEY = re.compile(r"[0-9a-f]{12}")
_NOTE = os.path.join(".git", "checked_out")  # in an idle workspace
_PROC = "/proc"
_REMOVED = "removed-"
_SELINUX = "security.selinux"  # containers give files another label
_AGE_NS = 2 * 10**9  # git reads files again that are not older than its index, and some file systems count in seconds

NoteLines = FrozenSet[bytes]  # mode, id and path of each file, link and submodule of a workspace


class NotReusable(StoreError):
    """The workspace cannot be brought to another tree; the message says why."""


@dataclass(frozen=True)
class IdleWorkspaces:
    """Those in the directory `path`, in names that begin with their `key`, see `key_of`. `note` is the file in which a
    run says what its workspace was checked out as."""

    path: str
    key: str
    note: str

    def take(self, workspace: str) -> Optional[NoteLines]:
        """Make the newest one `workspace`. Returns what it was checked out as, None where there is none."""
        for name in reversed(self._oldest_first(self.key + "-")):
            with suppress(OSError, ValueError):  # another run has taken it
                if _is_plain(os.path.join(self.path, name)):
                    os.rename(os.path.join(self.path, name), workspace)
                    return frozenset(_read_note(os.path.join(workspace, _NOTE))[2])
        return None

    def write_note(self, listings: Mapping[str, TreeEntries]) -> None:
        """By the entries of each part."""
        lines = [os.fsencode(self.path), self.key.encode("ascii")]
        for part, entries in listings.items():
            above = _prefix(part)
            lines += [_note_line(above + path, entry) for path, entry in entries.items()]
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
    path, key, lines = _read_note(note)
    fields = (line.split(b" ", 2) for line in lines)
    modes = {name: int(mode, 8) for mode, _, name in fields}
    remove_others(os.fsencode(workspace), modes, made=os.lstat(note).st_mtime_ns)
    os.mkdir(os.path.dirname(os.path.join(workspace, _NOTE)))
    os.rename(note, os.path.join(workspace, _NOTE))
    IdleWorkspaces(path, key, note)._add(workspace)


def _note_line(path: bytes, entry: TreeEntry) -> bytes:
    return b"%o %s %s" % (entry[0], entry[1].encode("ascii"), path)


def _read_note(note: str) -> Tuple[str, str, List[bytes]]:
    path, key, *lines = read_file(note, _MAX_NOTE).split(b"\0")
    if not _KEY.fullmatch(os.fsdecode(key)):
        raise ValueError("%r is no key" % key)
    return os.fsdecode(path), os.fsdecode(key), lines


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


def update_files(
    git: HostGit, reader: ObjectReader, part: CheckoutPart, entries: TreeEntries, before: NoteLines
) -> None:
    """Bring git's work tree to `entries`, those of the part, and give it an index that has them. `before`: what the
    workspace was checked out as. Raises StoreError where a file is another one in the end, and OSError."""
    top, above = os.fsencode(git.directory), _prefix(part.path)
    same = {path: entry.mode for path, entry in entries.items() if _note_line(above + path, entry) in before}
    kept = remove_others(top, same, keep=b".git")
    _write_files(git, {path: entry for path, entry in entries.items() if path not in kept}, reader.form)
    checked = check_directory(top, entries, reader.form, kept, _new_file(top))
    if changed := {path: entries[path] for path in checked.differing if path in kept}:
        for path in changed:
            _remove(os.path.join(top, path))
        _write_files(git, changed, reader.form)
        checked = check_directory(top, entries, reader.form)
    raise_if_different(git, part.tree, checked.differing)
    for path, entry in entries.items():
        if entry.mode == SUBMODULE:
            checked.unchanged[path] = index_entry(path, *entry, None)
    _write_index(git, checked.unchanged, reader.form)
    head = os.path.join(git.env["GIT_DIR"], "HEAD")
    os.unlink(head)
    with open(head, "wb") as out:  # with the permissions of a file that git makes
        out.write(part.commit.encode("ascii") + b"\n")


def _write_files(git: HostGit, entries: TreeEntries, form: str) -> None:
    """As a checkout does. What is in their place is removed already."""
    for path, entry in entries.items():
        if entry.mode == SUBMODULE:
            os.makedirs(os.path.join(os.fsencode(git.directory), path))
    files = {path: entry for path, entry in entries.items() if entry.mode != SUBMODULE}
    if files:
        _write_index(git, {path: index_entry(path, *entry, None) for path, entry in files.items()}, form)
        git.run("checkout-index", "--all", "--quiet")


def _write_index(git: HostGit, index: Mapping[bytes, bytes], form: str) -> None:
    """By the entry of each path."""
    header = b"DIRC" + struct.pack(">LL", 2, len(index))
    content = b"".join([header, *(index[path] for path in sorted(index))])
    with open(os.path.join(git.env["GIT_DIR"], "index"), "wb") as out:
        out.write(content + HASHES[form](content).digest())


def remove_others(
    top: bytes, modes: Mapping[bytes, int], made: Optional[int] = None, keep: bytes = b""
) -> Collection[bytes]:
    """Remove from the directory `top` all but `keep`, directories that are as new ones, and files and links that are in
    `modes`. `made`: those that have changed since then, in ns, are removed, too. Returns the files and links that stay.
    Raises NotReusable, OSError."""
    new = _new_directory(os.path.dirname(top))
    if not _is_like(top, new):
        raise NotReusable("%s is not as a new directory" % os.fsdecode(top))
    files = {path for path, mode in modes.items() if mode != SUBMODULE}
    parents = parents_of(files)
    kept = set()
    unread = [b""]
    while unread:
        above = unread.pop()
        with os.scandir(os.path.join(top, above)) as listing:
            found = list(listing)
        for item in found:
            path = above + item.name
            if path in files and _has_type(item, modes[path]) and (made is None or _is_unchanged(item, made)):
                kept.add(path)
            elif path in parents and item.is_dir(follow_symlinks=False) and _is_like(item.path, new):
                unread.append(path + b"/")
            elif path != keep:
                _remove(item.path)
    return kept


def _has_type(item: "os.DirEntry[bytes]", mode: int) -> bool:
    return item.is_symlink() if mode == LINK else item.is_file(follow_symlinks=False)


def _is_unchanged(item: "os.DirEntry[bytes]", since: int) -> bool:
    """Its content, mode, owner, links and attributes: no process can set this time."""
    return item.stat(follow_symlinks=False).st_ctime_ns <= since


def _remove(path: bytes) -> None:
    problem = remove_own(os.fsdecode(path))
    if problem:
        raise NotReusable(problem)


def _new_directory(above: bytes) -> os.stat_result:
    """What a directory is like that is made there."""
    made = os.path.join(above, b"new-" + os.urandom(8).hex().encode("ascii"))
    os.mkdir(made)
    try:
        return os.lstat(made)
    finally:
        os.rmdir(made)


def _new_file(top: bytes) -> NewFile:
    new = _new_directory(os.path.dirname(top))
    return NewFile(new.st_uid, new.st_gid, new.st_dev, stat.S_IMODE(new.st_mode), time.time_ns() - _AGE_NS)


def _is_like(path: bytes, new: os.stat_result) -> bool:
    """Whether a directory is as a new one but for its times. It gets the present one, which an immutable one does not
    take."""
    info = os.lstat(path)
    if (info.st_uid, info.st_gid, info.st_dev, info.st_mode) != (new.st_uid, new.st_gid, new.st_dev, new.st_mode):
        return False
    try:
        if any(name != _SELINUX for name in os.listxattr(path, follow_symlinks=False)):
            return False
        os.utime(path)
    except (OSError, AttributeError):  # another system than Linux
        return False
    return True
