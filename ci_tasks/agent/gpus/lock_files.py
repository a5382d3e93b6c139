"""Lock files: taking one, and who holds one, in words, from /proc/locks and /proc/PID.

The files are those of the checkout's lock script, one `flock` each. Nothing is ever written into them, and none is ever
removed: a lock on a file without a name excludes no process. What cannot be read of a holder is "an unknown process".
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shlex
import stat
from contextlib import suppress
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from .. import files, mask, processes, run_directory
from ..files import content_of

LOCKS = "/proc/locks"
UNKNOWN = "an unknown process"
# Neither follows a symbolic link nor blocks on something that is no regular file.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_COMMAND = 60  # characters of a command line
_FLOCK = re.compile(r"^\d+: FLOCK +\w+ +(\w+) +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.M)


class LockError(Exception):
    """A lock file cannot be used; the message says what to do about it."""


class HeldLock(NamedTuple):
    """One line of /proc/locks: `pid` took an flock on the `file` (major, minor, inode); a `shared` one excludes only
    exclusive locks. A holder in another container's process namespace may be missing, or have PID 0."""

    file: Tuple[int, int, int]
    pid: int
    shared: bool


def try_lock(path: str, shared: bool = False, own: bool = False) -> Optional[int]:
    """The descriptor that holds the lock, or None if another process holds it. Read access is enough, so that a file of
    root's serves every user. `own`: only ci-tasks uses the file, so any user may create it."""
    try:
        create_missing([path], own)
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        remedy = "; run once as root: chmod 666 %s" % shlex.quote(path) if isinstance(error, PermissionError) else ""
        raise LockError("lock file %s: %s%s" % (path, error.strerror, remedy)) from None
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    if is_file and files.try_lock(descriptor, exclusive=not shared):
        return descriptor
    os.close(descriptor)
    if not is_file:
        raise LockError("lock file %s: not a regular file" % path)
    return None


def release(descriptor: int) -> None:
    """Release the lock at once, even if a child process has inherited the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_free(path: str) -> bool:
    """Whether no process holds an exclusive lock at this moment."""
    with suppress(LockError):
        descriptor = try_lock(path, shared=True)
        if descriptor is not None:
            release(descriptor)
            return True
    return False


def create_missing(paths: Iterable[str], own: bool = False) -> None:
    """Create the lock files that do not exist, for every user. Raises LockError, OSError."""
    missing = [path for path in paths if not os.path.lexists(path)]
    directory = os.path.dirname(missing[0]) or "." if missing else ""
    if missing and not own and os.path.isdir(directory):
        protected = content_of("/proc/sys/fs/protected_regular").decode("ascii").strip() or "0"
        if blocks_other_users(os.stat(directory), os.geteuid(), protected):
            quoted = " ".join(map(shlex.quote, missing))
            raise LockError(
                "the lock file %s is missing, and root's containers could not open one that this user creates; "
                "run once as root: touch %s && chmod 666 %s" % (missing[0], quoted, quoted)
            )
    for path in missing:
        os.makedirs(directory, exist_ok=True)
        with suppress(PermissionError):  # another user created it meanwhile
            descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o666)
            try:
                os.fchmod(descriptor, 0o666)  # the umask must not keep others out
            finally:
                os.close(descriptor)


def blocks_other_users(directory: os.stat_result, user: int, protected: str) -> bool:
    """Whether other users could not open a file that `user` creates in `directory` the way the lock script does.

    It opens with O_CREAT. Under fs.protected_regular the kernel refuses that for a file in a sticky, world-writable
    directory that belongs neither to the opener nor to the directory's owner, even to root: a lock file created by a
    person would break every job of root's on this machine.
    """
    shared = bool(directory.st_mode & stat.S_ISVTX) and bool(directory.st_mode & stat.S_IWOTH)
    return shared and user != directory.st_uid and protected != "0"


# -- who holds them ----------------------------------------------------------------------------------------------------


def parse_locks(text: str) -> List[HeldLock]:
    """The flocks in /proc/locks; processes that only wait (`->`) hold nothing.

    1: FLOCK  ADVISORY  WRITE 21234 00:1b:8 0 EOF
    """
    return [
        HeldLock((int(major, 16), int(minor, 16), int(inode)), int(pid), kind == "READ")
        for kind, pid, major, minor, inode in _FLOCK.findall(text)
    ]


def holders(paths: Dict[int, str]) -> Dict[int, int]:
    """{key: pid} of another process with an exclusive lock on the file, as far as this system shows them."""
    held = parse_locks(content_of(LOCKS).decode("ascii", "replace"))
    others = {lock.file: lock.pid for lock in held if not lock.shared and lock.pid != os.getpid()}
    found = {}
    for key, path in paths.items():
        with suppress(OSError, KeyError):
            file = os.stat(path)
            found[key] = others[os.major(file.st_dev), os.minor(file.st_dev), file.st_ino]
    return found


def run_dir_of(pid: int) -> Optional[str]:
    """The run directory that a process belongs to: by its environment, or as the run's own agent, which has that
    directory as its working directory. None if it belongs to no run, or nothing can be read."""
    mark = os.fsencode(run_directory.ENV_RUN_DIR + "=")
    for entry in processes.environ(pid):
        if entry.startswith(mark):
            return os.path.realpath(os.fsdecode(entry[len(mark) :]))
    with suppress(OSError, ValueError):
        directory = os.readlink("/proc/%d/cwd" % pid)
        if run_directory.read_status(run_directory.RunDir(directory)).pid == pid:
            return directory
    return None


def describe_process(pid: int) -> str:
    """`run 20260102-030405-ckpt.03`, `pid 4242 of root (python train.py)`, or UNKNOWN."""
    directory = run_dir_of(pid)
    if directory is not None:
        return "run " + ".".join(directory.split("/")[-2:])
    argv = [os.fsdecode(word) for word in content_of("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]
    text = " ".join(shlex.quote(word) for word in mask.masked(argv))
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text if len(text) <= _MAX_COMMAND else text[: _MAX_COMMAND - 1] + "…"
    owner = ""
    with suppress(OSError, KeyError):
        owner = " of " + pwd.getpwuid(os.stat("/proc/%d" % pid).st_uid).pw_name
    return "pid %d%s (%s)" % (pid, owner, text) if text else UNKNOWN


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """`GPU 5`, `GPUs 0-3`, `ranks 0, 2, 5-7`."""
    ranges: List[List[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    text = ", ".join("%d-%d" % (part[0], part[-1]) if len(part) > 1 else str(part[0]) for part in ranges)
    return "%s%s %s" % (noun, "s" if sum(map(len, ranges)) > 1 else "", text)
