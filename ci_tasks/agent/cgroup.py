"""A cgroup for the job, where this user may make one: root, or somebody to whom systemd has delegated one.

The kernel kills all that is in it at once, and it is still found after the agent was killed. Where there is none, as on
most hosts, the process tree has to do. A job that may write to cgroups can leave it.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import List, Set

from . import run_directory

_MOUNTS, _OWN = "/proc/self/mounts", "/proc/self/cgroup"
_PROCESSES, _KILL = "cgroup.procs", "cgroup.kill"
_SLURM = "SLURM_JOB_ID"  # Slurm ends what is in the cgroups that it made, and looks into no others
_REMOVE_SECONDS = 1.0
_JOIN = 'echo $$ 2> /dev/null > "$0/%s"; exec bash "$1"' % _PROCESSES


def create(run_dir: str) -> str:
    """Returns its directory; empty where none can be made."""
    own = _parent()
    if not own or _SLURM in os.environ:
        return ""
    path = os.path.join(own, _name(run_dir))
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return ""
    if all(os.access(os.path.join(path, name), os.W_OK) for name in (_PROCESSES, _KILL)):
        return path
    remove(path)
    return ""


def command(path: str, script: str) -> List[str]:
    """Run `script` by bash, in the cgroup from its first moment."""
    return ["bash", "-c", _JOIN, path, script] if path else ["bash", script]


def of_run(run_dir: str, path: str) -> str:
    """The run's, which its status says is `path`, or where it would be made now; empty where there is none."""
    paths = [path, os.path.join(_parent(), _name(run_dir))]
    is_own = (path for path in paths if os.path.basename(path) == _name(run_dir))
    return next((path for path in is_own if os.path.exists(os.path.join(path, _KILL))), "")


def kill(path: str) -> Set[int]:
    """Kill all that is in it. Returns the processes."""
    pids: Set[int] = set()
    if not path:
        return pids
    try:
        for directory, _, _ in os.walk(path):
            pids.update(map(int, _read(os.path.join(directory, _PROCESSES)).split()))
        with open(os.path.join(path, _KILL), "w", encoding="ascii") as out:
            out.write("1")
    except OSError:
        pass  # the processes are looked for one by one too
    return pids


def processes_in(path: str) -> List[int]:
    """The processes in it, and in those below it."""
    pids: List[int] = []
    for directory, _, _ in os.walk(path) if path else ():
        try:
            pids += map(int, _read(os.path.join(directory, _PROCESSES)).split())
        except (OSError, ValueError):
            pass
    return pids


def remove(path: str) -> None:
    """It is busy until the last process in it is reaped."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while path and os.path.isdir(path) and time.monotonic() < deadline:
        for directory, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                time.sleep(0.01)


def parent(mounts: str, own: str) -> str:
    """The directory of the cgroup (version 2) that a process is in, by its /proc files; empty where there is none."""
    points = [fields[1] for fields in map(str.split, mounts.splitlines()) if len(fields) > 2 and fields[2] == "cgroup2"]
    paths = [line[3:] for line in own.splitlines() if line.startswith("0::/")]
    if not points or not paths or ".." in paths[0].split("/"):
        return ""
    return os.path.normpath(points[0] + paths[0])


def _parent() -> str:
    try:
        return parent(_read(_MOUNTS), _read(_OWN))
    except OSError:
        return ""


def _name(run_dir: str) -> str:
    return "ci-tasks-" + hashlib.sha256(os.fsencode(run_directory.mark(run_dir))).hexdigest()[:16]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as source:
        return source.read()
