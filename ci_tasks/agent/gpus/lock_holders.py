"""Descriptions of the processes that hold locks: the run, its user, since when, and the command of other processes.

Everything comes from /proc/PID, where anything may be unreadable: then it is "an unknown process".
"""

from __future__ import annotations

import os
import pwd
import shlex
from typing import Dict, Iterable, List, Optional

from .. import argv_masking, processes, run_directory
from ..files import content_of

_PROC = "/proc"
_MAX_COMMAND = 60  # characters of a command line
UNKNOWN = "an unknown process"


def run_dir_of(pid: int) -> Optional[str]:
    """The run directory that a process belongs to: by its environment, or as the run's own agent, which has that
    directory as its working directory. None where it belongs to no run, or nothing can be read."""
    mark = os.fsencode(run_directory.ENV_RUN_DIR + "=")
    for entry in content_of("%s/%d/environ" % (_PROC, pid)).split(b"\0"):
        if entry.startswith(mark):
            return os.path.realpath(os.fsdecode(entry[len(mark) :]))
    try:
        directory = os.readlink("%s/%d/cwd" % (_PROC, pid))
        status = run_directory.read_status(run_directory.RunDir(directory))
    except (OSError, ValueError):
        return None
    return directory if status.pid == pid else None


def describe_process(pid: int, uptime: Optional[float] = None) -> str:
    """`run 20260102-030405-ckpt.03 of anna for 12 min`, `pid 4242 of root (python train.py) for 3 h`, or UNKNOWN.
    `uptime`: seconds since boot, read from /proc by default."""
    directory = run_dir_of(pid)
    if directory is not None:
        return "run %s%s%s" % (_run_id(directory), _owner(directory), _age(pid, uptime))
    command = _command(pid)
    if not command:
        return UNKNOWN
    return "pid %d%s (%s)%s" % (pid, _owner("%s/%d" % (_PROC, pid)), command, _age(pid, uptime))


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


def group_by_reason(reasons: Dict[int, str]) -> List[str]:
    """One sentence for all GPUs with the same reason. `reasons` is {GPU id: what follows its name}."""
    groups: Dict[str, List[int]] = {}
    for gpu, reason in sorted(reasons.items()):
        groups.setdefault(reason, []).append(gpu)
    return [numbered("GPU", gpus) + reason for reason, gpus in groups.items()]


def _run_id(directory: str) -> str:
    """plan.json's id; else the directory's last two names, of which it is made."""
    try:
        id = run_directory.read_plan(run_directory.RunDir(directory)).id
    except (OSError, ValueError):
        id = ""
    return id or ".".join(directory.rstrip("/").split("/")[-2:])


def _owner(path: str) -> str:
    """The owner of the run directory: the processes in a run's container are root's."""
    try:
        user = os.stat(path).st_uid
    except OSError:
        return ""
    try:
        return " of " + pwd.getpwuid(user).pw_name
    except KeyError:
        return " of user %d" % user


def _command(pid: int) -> str:
    """The command line, shortened and with secrets masked."""
    argv = [os.fsdecode(word) for word in content_of("%s/%d/cmdline" % (_PROC, pid)).split(b"\0")[:-1]]
    text = " ".join(shlex.quote(word) for word in argv_masking.masked(argv))
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= _MAX_COMMAND else text[: _MAX_COMMAND - 1] + "…"


def _age(pid: int, uptime: Optional[float]) -> str:
    """How long the process has existed; when it took the lock is not recorded anywhere."""
    ticks = processes.start_time(pid)
    if ticks is None:
        return ""
    if uptime is None:
        try:
            with open(_PROC + "/uptime", encoding="ascii") as source:
                uptime = float(source.read().split()[0])
        except (OSError, ValueError):
            return ""
    minutes = (uptime - int(ticks) / os.sysconf("SC_CLK_TCK")) / 60
    if minutes < 1:
        return " for less than a minute"
    return " for %d min" % minutes if minutes < 120 else " for %d h" % (minutes / 60)
