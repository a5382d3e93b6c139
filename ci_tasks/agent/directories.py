"""What is below a directory, and its removal as far as our own permissions go. Links are not followed."""

from __future__ import annotations

import os
import re
import stat
from typing import Iterator, List

from .files import content_of
from .programs import run_program

TIMEOUT = 600.0  # seconds for one tree; a hundred thousand files on a network file system take their time
_MOUNTS = "/proc/self/mountinfo"


def remove_own(path: str) -> str:
    """Remove `path`, a directory, file or link. Returns the problem if something is left."""
    if os.path.isdir(path) and not os.path.islink(path):
        for directory in walk(path, only_directories=True):
            add_permissions(directory, stat.S_IRWXU)
    answer = run_program(["rm", "-rf", "--", os.path.abspath(path)], TIMEOUT)
    return "" if answer.code == 0 else answer.last_line


def walk(top: str, only_directories: bool = False) -> Iterator[str]:
    """`top` and everything below it, links left out; a directory comes before it is looked into."""
    pending = [top]
    while pending:
        path = pending.pop()
        yield path
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif not entry.is_symlink() and not only_directories:
                yield entry.path


def add_permissions(path: str, more: int = 0) -> bool:
    """Whether we can read `path` now."""
    try:
        mode = os.lstat(path).st_mode
        new_mode = mode | more | stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(mode) else 0)
        if new_mode != mode:
            os.chmod(path, stat.S_IMODE(new_mode))
    except OSError:
        return False
    return os.access(path, os.R_OK)


def mounted_below(path: str) -> List[str]:
    """The places at or below `path`, an absolute one without links, where a file system is mounted."""
    lines = content_of(_MOUNTS).decode("utf-8", "surrogateescape").splitlines()
    # The kernel writes blanks, newlines and backslashes as octal numbers.
    points = [re.sub(r"\\([0-7]{3})", lambda char: chr(int(char[1], 8)), line.split(" ")[4]) for line in lines]
    return [point for point in points if (point + "/").startswith(path + "/")]
