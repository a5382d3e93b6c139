"""What is below a directory, and the removal of one in which a container may have left anything: root's files, modes of
000, very deep trees.

What another user owns is removed by a container of the image that made it. Links are not followed, and where a file
system is mounted inside, nothing is removed at all.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Iterator, List, Mapping, Optional

from .containers.docker_argv import ENGINES
from .containers.run_containers import SHORT_TIMEOUT, DockerClient
from .files import content_of
from .processes import run_program
from .records import QueryAnswer

TIMEOUT = 600.0  # seconds for one tree; a hundred thousand files on a network file system take their time
_MOUNTS = "/proc/self/mountinfo"


def remove_own(path: str) -> str:
    """Remove `path`, a directory, file or link. Returns the problem if something is left."""
    path = os.path.abspath(path)
    if os.path.isdir(path) and not os.path.islink(path):
        run_program(["chmod", "-R", "u+rwX", "--", path], TIMEOUT)
    answer = run_program(["rm", "-rf", "--", path], TIMEOUT)
    return "" if answer.code == 0 else answer.last_line


def below(top: str, excluded: str = "") -> Iterator["os.DirEntry[str]"]:
    """Everything below `top`, without links, and without what is in `excluded`. As deep as it may be: os.walk of older
    Pythons is recursive."""
    pending = [top]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    yield entry
                    if entry.is_dir(follow_symlinks=False) and entry.path != excluded:
                        pending.append(entry.path)


def mounted_below(path: str) -> List[str]:
    """The places at or below `path`, an absolute one without links, where a file system is mounted."""
    lines = content_of(_MOUNTS).decode("utf-8", "surrogateescape").splitlines()
    # The kernel writes blanks, newlines and backslashes as octal numbers.
    points = [re.sub(r"\\([0-7]{3})", lambda char: chr(int(char[1], 8)), line.split(" ")[4]) for line in lines]
    return [point for point in points if (point + "/").startswith(path + "/")]


def remove_tree(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> List[str]:
    """Remove `path`, a directory, file or link. Returns a line for each problem; none is success."""
    path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path.rstrip("/")))
    mounts = mounted_below(path)
    if mounts:
        return ["%s: a file system is mounted there" % mount for mount in mounts]
    problem = remove_own(path)
    if os.path.lexists(path):
        answer = _in_container(path, image, runtime, env, "rm", "-rf")
        problem = answer.last_line if answer.code else problem
    return ["%s: %s" % (path, problem or "it still exists")] if os.path.lexists(path) else []


def make_readable(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> None:
    """Everything below the directory `path` can be read by us afterwards, also what root wrote in a container."""
    run_program(["chmod", "-R", "u+rX", "--", path], TIMEOUT)
    if not all(os.access(entry, os.R_OK) for entry in below(path)):
        _in_container(path, image, runtime, env, "chmod", "-R", "a+rX")


def take_ownership(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> None:
    """What root wrote in a container below the directory `path` is ours afterwards, as far as its image has chown."""
    entries = [] if mounted_below(path) else below(path)
    if any(entry.stat(follow_symlinks=False).st_uid != os.geteuid() for entry in entries):
        _in_container(path, image, runtime, env, "chown", "-hR", "%d:%d" % (os.geteuid(), os.getegid()))


def _in_container(
    path: str, image: Optional[str], runtime: str, env: Mapping[str, str], program: str, *args: str
) -> QueryAnswer:
    """`PROGRAM WORDS PATH` as root in a container that sees nothing but the directory of `path`."""
    if not image or runtime not in ENGINES:
        return QueryAnswer(None)
    client = DockerClient(runtime, env)
    # A large tree takes long; a daemon that hangs is not waited for as long.
    answer = client.run("version", timeout=SHORT_TIMEOUT)
    if answer.timed_out:
        return answer
    parent, name = os.path.split(path)
    return client.run(
        *("run", "--rm", "--pull=never", "--network", "none", "--user", "0:0", "--workdir", "/"),
        *("--security-opt", "label=disable", "--entrypoint", program),
        *("--mount", "type=bind,source=%s,destination=/x" % parent),
        *(image, *args, "--", "/x/" + name),
        timeout=TIMEOUT,
    )
