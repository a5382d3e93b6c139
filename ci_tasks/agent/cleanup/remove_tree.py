"""Removes a directory in which a container may have left anything: root's files, modes of 000, very deep trees.

What another user owns is removed by a container of the image that made it. Links are not followed, and where a file
system is mounted inside, nothing is removed at all.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import stat
import subprocess
from typing import Dict, Iterator, List, Optional

from ..containers.run_containers import RUNTIMES, SHORT_TIMEOUT, DockerClient, DockerResult

TIMEOUT = 600.0  # seconds for one tree; a hundred thousand files on a network file system take their time
_MOUNTS = "/proc/self/mountinfo"


def remove_tree(path: str, image: Optional[str], runtime: str, env: Dict[str, str]) -> List[str]:
    """Remove `path`, a directory, file or link. Returns a line for each problem; none is success."""
    path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path.rstrip("/")))
    mounts = _mounted_below(path)
    if mounts:
        return ["%s: a file system is mounted there" % mount for mount in mounts]
    problem = _remove(path)
    if os.path.lexists(path) and image and runtime in RUNTIMES:
        answer = in_container(DockerClient(runtime, env), image, path, "rm", "-rf")
        problem = problem if answer.code == 0 else answer.problem
    return ["%s: %s" % (path, problem or "it is still there")] if os.path.lexists(path) else []


def make_readable(path: str, image: Optional[str], runtime: str, env: Dict[str, str]) -> None:
    """Everything below the directory `path` can be read by us afterwards, also what root wrote in a container."""
    if all(_add_permissions(entry) for entry in _walk(path)):
        return
    if image and runtime in RUNTIMES:
        in_container(DockerClient(runtime, env), image, path, "chmod", "-R", "a+rX")


def in_container(client: DockerClient, image: str, path: str, program: str, *args: str) -> DockerResult:
    """`PROGRAM WORDS PATH` as root in a container that sees nothing but the directory of `path`."""
    # A large tree takes long; a daemon that hangs is not waited for as long.
    answer = client.run("version", timeout=SHORT_TIMEOUT)
    if answer.timed_out:
        return answer
    parent, name = os.path.split(path)
    return client.run(
        *("run", "--rm", "--pull=never", "--network", "none", "--user", "0:0", "--workdir", "/"),
        *("--security-opt", "label=disable", "--entrypoint", program),
        *("--mount", _csv("type=bind", "source=" + parent, "destination=/x")),
        *(image, *args, "--", "/x/" + name),
        timeout=TIMEOUT,
    )


def _remove(path: str) -> str:
    """As far as our own permissions go. Returns the problem where something is left."""
    if not os.path.isdir(path) or os.path.islink(path):
        return _unlink(path)
    try:
        for directory in _walk(path, only_directories=True):
            _add_permissions(directory, stat.S_IRWXU)
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


def _walk(top: str, only_directories: bool = False) -> Iterator[str]:
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


def _add_permissions(path: str, more: int = 0) -> bool:
    try:
        mode = os.lstat(path).st_mode
        new_mode = mode | more | stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(mode) else 0)
        if new_mode != mode:
            os.chmod(path, stat.S_IMODE(new_mode))
    except OSError:
        return False
    return os.access(path, os.R_OK)


def _mounted_below(path: str) -> List[str]:
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as source:
            points = [_unescape(line.split(" ")[4]) for line in source]
    except (OSError, IndexError):
        return []
    return [point for point in points if (point + "/").startswith(path + "/")]


def _unescape(point: str) -> str:
    """The kernel writes blanks, newlines and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), point)


def _csv(*fields: str) -> str:
    """`--mount`'s value: a path may hold a colon, a comma, a quote or a newline."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(fields)
    return out.getvalue()[:-1]
