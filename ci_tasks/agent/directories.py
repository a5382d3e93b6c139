"""What is below a directory, and its removal as far as our own permissions go. Links are not followed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from typing import Iterator, List

TIMEOUT = 600.0  # seconds for one tree; a hundred thousand files on a network file system take their time
_MOUNTS = "/proc/self/mountinfo"


def remove_own(path: str) -> str:
    """Remove `path`, a directory, file or link. Returns the problem where something is left."""
    if not os.path.isdir(path) or os.path.islink(path):
        return _unlink(path)
    try:
        for directory in walk(path, only_directories=True):
            add_permissions(directory, stat.S_IRWXU)
        shutil.rmtree(path)
    except OSError as error:
        return str(error)
    except RecursionError:  # deeper than Python can go, and rm can
        try:
            subprocess.run(["rm", "-rf", "--", path], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return ""


def _unlink(path: str) -> str:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return str(error)
    return ""


def walk(top: str, only_directories: bool = False) -> Iterator[str]:
    """`top` and everything below it, links left out; a directory comes before it is looked into."""
    ahead = [top]
    while ahead:
        path = ahead.pop()
        yield path
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                ahead.append(entry.path)
            elif not entry.is_symlink() and not only_directories:
                yield entry.path


def add_permissions(path: str, more: int = 0) -> bool:
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
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as source:
            points = [_unescape(line.split(" ")[4]) for line in source]
    except (OSError, IndexError):
        return []
    return [point for point in points if (point + "/").startswith(path + "/")]


def _unescape(point: str) -> str:
    """The kernel writes blanks, newlines and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), point)
