"""Lock files: opening and locking them, and the processes that hold one, from /proc/locks.

The files are those of the checkout's lock script, one `flock` each. Nothing is ever written into them, and none is ever
removed: a lock on a file without a name excludes nobody.
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
# Neither follows a symbolic link nor blocks on something that is no regular file.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LockError(Exception):
    """A lock file cannot be used; the message says what to do about it."""


@dataclasses.dataclass(frozen=True)
class HeldLock:
    """One line of /proc/locks: `pid` took an flock on the file (`device`, `inode`); a `shared` one excludes only
    exclusive locks."""

    device: Tuple[int, int]
    inode: int
    pid: int
    shared: bool


def open_lock(path: str, own: bool = False) -> int:
    """A descriptor for `flock`. Read access is enough, so that a file of root's serves everybody.

    `own`: only ci-tasks uses the file, and opens it as here; so any user may create it.
    """
    for flags in (_READ, _READ | os.O_CREAT, _READ):  # the last where another user created it meanwhile
        if flags != _READ and not own:
            _check_creatable([path])
        try:
            descriptor = _open_or_create(path, flags)
        except (FileNotFoundError, PermissionError) as error:
            problem: OSError = error
        except OSError as error:
            raise LockError("lock file %s: %s" % (path, error.strerror)) from None
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            raise LockError("lock file %s: not a regular file" % path)
    remedy = "; " + _open_to_all([path]) if os.path.exists(path) else ""
    raise LockError("lock file %s: %s%s" % (path, problem.strerror, remedy))


def try_lock(path: str, shared: bool = False, own: bool = False) -> Optional[int]:
    """The descriptor that holds the lock, or None where another process holds it."""
    descriptor = open_lock(path, own)
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
    """Release the lock at once, even where a child process has inherited the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def is_free(path: str) -> bool:
    """Whether no process holds an exclusive lock at this moment."""
    try:
        descriptor = try_lock(path, shared=True)
    except LockError:
        return False
    if descriptor is None:
        return False
    release(descriptor)
    return True


def parse_locks(text: str) -> List[HeldLock]:
    """The flocks in /proc/locks; processes that only wait (`->`) hold nothing.

    1: FLOCK  ADVISORY  WRITE 21234 00:1b:8 0 EOF
    """
    locks = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        try:
            major, minor, inode = fields[5].split(":")
            held = HeldLock((int(major, 16), int(minor, 16)), int(inode), int(fields[4]), fields[3] == "READ")
        except ValueError:
            continue
        locks.append(held)
    return locks


def held_locks(paths: Dict[int, str]) -> Dict[int, List[HeldLock]]:
    """{key: the locks on the file} for those that are held, as far as this system shows them.

    A holder in another container's process namespace may be missing, or have PID 0.
    """
    try:
        with open(LOCKS, encoding="ascii", errors="replace") as source:
            held = parse_locks(source.read())
    except OSError:
        return {}
    by_key: Dict[int, List[HeldLock]] = {}
    for key, path in paths.items():
        try:
            file = os.stat(path)
        except OSError:
            continue
        device = (os.major(file.st_dev), os.minor(file.st_dev))
        locks = [lock for lock in held if (lock.device, lock.inode) == (device, file.st_ino)]
        if locks:
            by_key[key] = locks
    return by_key


def blocks_other_users(directory: os.stat_result, user: int, protected: str) -> bool:
    """Whether other users could not open a file that `user` creates in `directory` the way the lock script does.

    It opens with O_CREAT. Under fs.protected_regular the kernel refuses that for a file in a sticky, world-writable
    directory that belongs neither to the opener nor to the directory's owner, even to root: a lock file created by a
    person would break every job of root's on this machine.
    """
    shared = bool(directory.st_mode & stat.S_ISVTX) and bool(directory.st_mode & stat.S_IWOTH)
    return shared and user != directory.st_uid and protected != "0"


def check_writable(paths: Sequence[str]) -> None:
    """Raises LockError for files that the lock script of this user's job could not open, since it opens them to
    write."""
    closed = [path for path in paths if os.path.exists(path) and not os.access(path, os.W_OK)]
    if closed:
        raise LockError("only its owner may write the lock file %s; %s" % (closed[0], _open_to_all(closed)))


def _open_to_all(paths: Sequence[str]) -> str:
    return "run once as root: chmod 666 %s" % " ".join(map(shlex.quote, paths))


def create_missing(paths: Sequence[str]) -> None:
    """Create the lock files that do not exist."""
    missing = [path for path in paths if not os.path.lexists(path)]
    if missing:
        _check_creatable(missing)
    for path in missing:
        os.close(open_lock(path))


def _check_creatable(missing: Sequence[str]) -> None:
    directory = os.path.dirname(missing[0]) or "."
    try:
        blocks = blocks_other_users(os.stat(directory), os.geteuid(), _protected())
    except FileNotFoundError:
        return  # it will be created, and is this user's own
    if blocks:
        paths = " ".join(map(shlex.quote, missing))
        raise LockError(
            "the lock file %s is missing, and root's containers could not open one that this user creates; "
            "run once as root: touch %s && chmod 666 %s" % (missing[0], paths, paths)
        )


def _open_or_create(path: str, flags: int) -> int:
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    descriptor = os.open(path, flags, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # the umask must not keep others out
    except PermissionError:
        pass  # another user created it meanwhile
    return descriptor


def _protected() -> str:
    try:
        with open(_PROTECTED, encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return "0"  # a kernel without this setting
