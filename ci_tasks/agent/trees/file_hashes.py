"""Hashes the files of a work tree from their bytes, in as many processes as pay.

Threads would take turns: hashlib lets others run only while it hashes more than 2 KB, and most files are smaller. Such
a process runs this module, which therefore imports little.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import stat
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    import subprocess

LINK = 0o120000
HASHES = {"sha1": hashlib.sha1, "sha256": hashlib.sha256}  # by a repository's object format
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # what was a file may have become a link, or a pipe
_FILES_PER_PROCESS = 4000  # to hash fewer takes hardly longer than to start a process for them
_MAX_PROCESSES = 16
_SELINUX = "security.selinux"  # containers give files another label
_INDEX_ENTRY = {size: struct.Struct(">10L%dsH" % size) for size in (20, 32)}  # by the size of an object's id
_INDEX_MODES = {mode: mode for mode in (0o100644, 0o100755, LINK, 0o160000)}
_S = 10**9  # ns
_LOW = 0xFFFFFFFF  # what of a number an index keeps
_PADDING = [bytes(8 - size) for size in range(8)]
_START = "import sys; sys.path.insert(0, %r); from %s import main; main()"

FileEntry = Tuple[bytes, int, str, bool]  # path, mode and id as git has them, and whether it was there before


class NewFile(NamedTuple):
    """What a file is like that is made now. One that was there before is the same only if, but for its bytes, it is
    like this, and it gets the time `time_ns`, which an immutable one does not take."""

    uid: int
    gid: int
    device: int
    permissions: int
    time_ns: int

    def is_like(self, info: os.stat_result, mode: int) -> bool:
        if info[2:6] != (self.device, 1, self.uid, self.gid):  # 1: the number of its links
            return False
        return mode == LINK or info.st_mode == stat.S_IFREG | self.permissions & (0o777 if mode & 0o100 else 0o666)


def index_entries(
    top: bytes, files: Sequence[FileEntry], form: str, new: Optional[NewFile] = None
) -> List[Optional[bytes]]:
    """Of each file or link below the directory `top` its entry in an index of git's; None where it is not the same."""
    count = min(_cores(), _MAX_PROCESSES, 1 + len(files) // _FILES_PER_PROCESS)
    size = -(-len(files) // count) or 1
    chunks = [files[at : at + size] for at in range(0, len(files), size)]
    started = [(chunk, _start(top, chunk, form, new)) for chunk in chunks[1:]]
    entries = _entries(top, chunks[0], form, new) if chunks else []
    for chunk, process in started:
        answer = _answer(process)
        entries += _entries(top, chunk, form, new) if answer is None else answer
    return entries


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # another system than Linux
        return os.cpu_count() or 1


def _start(
    top: bytes, files: Sequence[FileEntry], form: str, new: Optional[NewFile]
) -> "Optional[subprocess.Popen[bytes]]":
    import subprocess

    above = __file__  # on a host the agent is a package of its own, perhaps in a zip file
    for _ in __name__.split("."):
        above = os.path.dirname(above)
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START % (above, __name__)],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    assert process.stdin
    try:
        marshal.dump((top, list(files), form, new and tuple(new)), process.stdin)
        process.stdin.close()
    except OSError:
        process.kill()
    return process


def _answer(process: "Optional[subprocess.Popen[bytes]]") -> Optional[List[Optional[bytes]]]:
    """None where there was no process, or it has failed: then the work is still to be done."""
    if process is None:
        return None
    assert process.stdout
    with process.stdout:
        output = process.stdout.read()
    process.wait()
    entries: Optional[List[Optional[bytes]]] = None
    with suppress(EOFError, ValueError, TypeError):
        entries = marshal.loads(output)
    return entries


def main() -> None:
    top, files, form, new = marshal.load(sys.stdin.buffer)
    marshal.dump(_entries(top, files, form, new and NewFile(*new)), sys.stdout.buffer)


def _entries(top: bytes, files: Sequence[FileEntry], form: str, new: Optional[NewFile] = None) -> List[Optional[bytes]]:
    """The same, in this process."""
    entries: List[Optional[bytes]] = []
    for path, mode, object_id, was_there in files:
        check = _same_link if mode == LINK else _same_file
        info = check(top + path, mode, object_id, form, new if was_there else None)
        entries.append(index_entry(path, mode, object_id, info) if info and new else info and b"")
    return entries


def _same_file(path: bytes, mode: int, object_id: str, form: str, like: Optional[NewFile]) -> Optional[os.stat_result]:
    """Its state, if it is the same."""
    try:
        handle = os.open(path, _READ)
    except OSError:
        return None
    try:
        info = os.fstat(handle)
        same_mode = like.is_like(info, mode) if like else has_mode(info, mode)
        if not same_mode or file_id(handle, info.st_size, form) != object_id:
            return None
        if like is None:
            return info
        return os.fstat(handle) if _renew(handle, like) else None
    finally:
        os.close(handle)


def _same_link(path: bytes, mode: int, object_id: str, form: str, like: Optional[NewFile]) -> Optional[os.stat_result]:
    try:
        target = os.readlink(path)
        if HASHES[form](b"blob %d\0%s" % (len(target), target)).hexdigest() != object_id:
            return None
        info = os.lstat(path)
        if like is None:
            return info
        return os.lstat(path) if like.is_like(info, mode) and _renew(path, like) else None
    except OSError:
        return None


def _renew(file: Union[int, bytes], like: NewFile) -> bool:
    """Give it the time of a new one. False where it has extended attributes, which a new one has not."""
    follows = isinstance(file, int)
    try:
        attributes = os.listxattr(file, follow_symlinks=follows)
        if attributes and attributes != [_SELINUX]:
            return False
        os.utime(file, ns=(like.time_ns, like.time_ns), follow_symlinks=follows)
    except (OSError, AttributeError):  # another system than Linux
        return False
    return True


def has_mode(info: os.stat_result, mode: int) -> bool:
    return stat.S_ISREG(info.st_mode) and bool(info.st_mode & stat.S_IXUSR) == bool(mode & 0o100)


def file_id(handle: int, size: int, form: str) -> str:
    """Of a file that had this size; one that has another by now has an id that no object has."""
    left = size + 1  # one byte more than there should be
    asked = min(left, _CHUNK)
    chunk = os.read(handle, asked)
    digest = HASHES[form](b"blob %d\0%s" % (size, chunk))
    left -= len(chunk)
    while chunk and not (left == 1 and len(chunk) < asked):  # a file gives less than asked only at its end
        asked = min(left, _CHUNK)
        chunk = os.read(handle, asked)
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()


def is_same_file(path: bytes, mode: int, object_id: str, form: str) -> bool:
    """Whether a file or link has this mode and this id, byte for byte."""
    return _entries(b"", [(path, mode, object_id, False)], form) != [None]


def index_entry(path: bytes, mode: int, object_id: str, info: Optional[os.stat_result]) -> bytes:
    """In an index (gitformat-index, version 2): a file that is unchanged since it was in this state."""
    device = inode = user = group = size = changed = written = 0
    if info is not None:
        _, inode, device, _, user, group, size = info[:7]
        changed, written = info.st_ctime_ns, info.st_mtime_ns
    mode = _INDEX_MODES.get(mode) or (0o100755 if mode & 0o100 else 0o100644)  # old trees have other modes
    name, length = bytes.fromhex(object_id), len(path)
    fixed = _INDEX_ENTRY[len(name)]
    times = changed // _S & _LOW, changed % _S, written // _S & _LOW, written % _S
    head = fixed.pack(
        *times, device & _LOW, inode & _LOW, mode, user, group, size & _LOW, name, length if length < 0xFFF else 0xFFF
    )
    return head + path + _PADDING[(fixed.size + length) % 8]
