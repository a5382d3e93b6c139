"""Lock files: how they are opened and locked, and who holds one, as /proc/locks tells it.

The files are those of the checkout's lock script, one `flock` each. Nothing is ever written into them, and none is ever
removed: a lock on a file that has lost its name keeps nobody away.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shlex
import stat
from typing import Dict, List, Optional, Sequence, Tuple

LOCKS = "/proc/locks"
_PROTECTED = "/proc/sys/fs/protected_regular"
# Not to be led elsewhere by a link, nor to hang on something that is no file.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LockError(Exception):
    """A lock file cannot be used; the message says what to do about it."""


@dataclasses.dataclass(frozen=True)
class Held:
    """One line of /proc/locks: `pid` took an flock on the file (`device`, `inode`); `shared` keeps only writers off."""

    device: Tuple[int, int]
    inode: int
    pid: int
    shared: bool


def open_lock(path: str, ours: bool = False) -> int:
    """A descriptor for `flock`. Read access is enough, so that a file of root's serves everybody.

    `ours`: only ci-tasks uses the file, and opens it as here; so any user may make it.
    """
    for flags in (_READ, _READ | os.O_CREAT, _READ):  # the last where another user made it meanwhile
        if flags != _READ and not ours:
            _refuse_harm([path])
        try:
            descriptor = _opened(path, flags)
        except (FileNotFoundError, PermissionError) as error:
            problem: OSError = error
        except OSError as error:
            raise LockError("lock file %s: %s" % (path, error.strerror)) from None
        else:
            return _regular(path, descriptor)
    raise LockError("lock file %s: %s" % (path, problem.strerror))


def try_lock(path: str, shared: bool = False, ours: bool = False) -> Optional[int]:
    """The descriptor that holds the lock, or None where somebody else has it."""
    descriptor = open_lock(path, ours)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise LockError("lock file %s: %s" % (path, error.strerror)) from None
    return descriptor


def release(descriptor: int) -> None:
    """Let go at once, also where a child that is just being started, or that was given it, has the descriptor too."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def is_free(path: str) -> bool:
    """Whether nobody holds the lock for itself, at this moment."""
    try:
        descriptor = try_lock(path, shared=True)
    except LockError:
        return False
    if descriptor is None:
        return False
    release(descriptor)
    return True


def parse_locks(text: str) -> List[Held]:
    """The flocks in /proc/locks; those who only wait (`->`) hold nothing.

    1: FLOCK  ADVISORY  WRITE 21234 00:1b:8 0 EOF
    """
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        try:
            major, minor, inode = fields[5].split(":")
            held = Held((int(major, 16), int(minor, 16)), int(inode), int(fields[4]), fields[3] == "READ")
        except ValueError:
            continue
        found.append(held)
    return found


def holders(paths: Dict[int, str]) -> Dict[int, List[Held]]:
    """{key: who holds the lock on the file} for those that are held, as far as this system tells.

    A holder in another container's process namespace may be missing, or have the number 0.
    """
    try:
        with open(LOCKS, encoding="ascii", errors="replace") as source:
            held = parse_locks(source.read())
    except OSError:
        return {}
    found: Dict[int, List[Held]] = {}
    for key, path in paths.items():
        try:
            at = os.stat(path)
        except OSError:
            continue
        device = (os.major(at.st_dev), os.minor(at.st_dev))
        mine = [lock for lock in held if (lock.device, lock.inode) == (device, at.st_ino)]
        if mine:
            found[key] = mine
    return found


def harms_others(directory: os.stat_result, user: int, protected: str) -> bool:
    """Whether a file that `user` makes in `directory` could not be opened by others the way the lock script does it.

    It opens with O_CREAT. Under fs.protected_regular the kernel refuses that for a file in a sticky, world-writable
    directory that belongs neither to the opener nor to the directory's owner, to root too: a lock file made by a
    person would break every job of root's on this machine.
    """
    shared = bool(directory.st_mode & stat.S_ISVTX) and bool(directory.st_mode & stat.S_IWOTH)
    return shared and user != directory.st_uid and protected != "0"


def prepare(paths: Sequence[str]) -> None:
    """Make the lock files that are missing."""
    missing = [path for path in paths if not os.path.lexists(path)]
    if missing:
        _refuse_harm(missing)
    for path in missing:
        os.close(open_lock(path))


def _refuse_harm(missing: Sequence[str]) -> None:
    directory = os.path.dirname(missing[0]) or "."
    try:
        harm = harms_others(os.stat(directory), os.geteuid(), _protected())
    except FileNotFoundError:
        return  # then the directory will be ours
    if harm:
        words = " ".join(map(shlex.quote, missing))
        raise LockError(
            "the lock file %s is missing, and one made by this user would lock root's containers out; "
            "once, as root: touch %s && chmod 666 %s" % (missing[0], words, words)
        )


def _opened(path: str, flags: int) -> int:
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    descriptor = os.open(path, flags, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # the umask must not keep others out
    except PermissionError:
        pass  # another user made it meanwhile
    return descriptor


def _regular(path: str, descriptor: int) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise LockError("lock file %s: not a regular file" % path)


def _protected() -> str:
    try:
        with open(_PROTECTED, encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return "0"  # a kernel that does not know it
