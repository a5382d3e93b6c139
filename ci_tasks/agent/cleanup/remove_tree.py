"""Removes a directory in which a container may have left anything: root's files, modes of 000, very deep trees.

What another user owns is removed by a container of the image that made it. Links are not followed, and where a file
system is mounted inside, nothing is removed at all.
"""

from __future__ import annotations

import os
from typing import List, Mapping, Optional

from ..containers.rules import ENGINES
from ..containers.run_containers import SHORT_TIMEOUT, DockerClient
from ..directories import TIMEOUT, add_permissions, mounted_below, remove_own, walk
from ..records import QueryAnswer


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
    return ["%s: %s" % (path, problem or "it is still there")] if os.path.lexists(path) else []


def make_readable(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> None:
    """Everything below the directory `path` can be read by us afterwards, also what root wrote in a container."""
    if not all(add_permissions(entry) for entry in walk(path)):
        _in_container(path, image, runtime, env, "chmod", "-R", "a+rX")


def take_ownership(path: str, image: Optional[str], runtime: str, env: Mapping[str, str]) -> None:
    """What root wrote in a container below the directory `path` is ours afterwards, as far as its image has chown."""
    if not mounted_below(path) and any(os.lstat(entry).st_uid != os.geteuid() for entry in walk(path)):
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
