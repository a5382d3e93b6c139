"""Who holds a lock, in words: the run, the person, since when, and the command where it is no run of ours.

Everything comes from /proc/PID, and anything there may be unreadable: then it is "somebody".
"""

from __future__ import annotations

import os
import pwd
import shlex
import time
from typing import Dict, Iterable, List, Optional

from .. import layout, process, words

_PROC = "/proc"
_LONGEST = 60  # characters of a command line
SOMEBODY = "somebody"


def run_of(pid: int) -> Optional[str]:
    """The run directory that a process belongs to: by its mark, or because it is the run's own runner, which stands in
    that directory. None where it is no run's, or nobody may know."""
    mark = os.fsencode(layout.ENV_RUN_DIR + "=")
    for entry in _read(pid, "environ").split(b"\0"):
        if entry.startswith(mark):
            return os.path.realpath(os.fsdecode(entry[len(mark) :]))
    try:
        directory = os.readlink("%s/%d/cwd" % (_PROC, pid))
        status = layout.read_json(layout.RunDir(directory).status)
    except (OSError, ValueError):
        return None
    return directory if status.get("pid") == pid else None


def describe(pid: int, now: Optional[float] = None) -> str:
    """`run 20260102-030405-ckpt.03 of anna for 12 min`, `pid 4242 of root (python train.py) for 3 h`, or somebody."""
    directory = run_of(pid)
    if directory is not None:
        return "run %s%s%s" % (_run_id(directory), _owner(directory), _for(pid, now))
    command = _command(pid)
    if not command:
        return SOMEBODY
    return "pid %d%s (%s)%s" % (pid, _owner("%s/%d" % (_PROC, pid)), command, _for(pid, now))


def ids(numbers: Iterable[int]) -> str:
    """`GPU 5`, `GPUs 0-3`, `GPUs 0, 2, 5-7`."""
    parts: List[List[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    shown = ", ".join("%d-%d" % (part[0], part[-1]) if len(part) > 1 else str(part[0]) for part in parts)
    return ("GPUs " if sum(map(len, parts)) > 1 else "GPU ") + shown


def grouped(said: Dict[int, str]) -> List[str]:
    """{GPU id: what is with it, from its space or colon on} as sentences, one for all GPUs that have the same."""
    together: Dict[str, List[int]] = {}
    for gpu, words_of_it in sorted(said.items()):
        together.setdefault(words_of_it, []).append(gpu)
    return [ids(gpus) + words_of_it for words_of_it, gpus in together.items()]


def _run_id(directory: str) -> str:
    """As the person knows it: plan.json's id; else the directory's last two names, of which it is made."""
    try:
        known = layout.read_json(layout.RunDir(directory).plan).get("id")
    except (OSError, ValueError):
        known = None
    return known if isinstance(known, str) else ".".join(directory.rstrip("/").split("/")[-2:])


def _owner(path: str) -> str:
    """A run is its directory's owner's: the processes in its container are root's."""
    try:
        user = os.stat(path).st_uid
    except OSError:
        return ""
    try:
        return " of " + pwd.getpwuid(user).pw_name
    except KeyError:
        return " of user %d" % user


def _command(pid: int) -> str:
    """Shortened, secrets hidden."""
    argv = [os.fsdecode(word) for word in _read(pid, "cmdline").split(b"\0")[:-1]]
    shown = " ".join(shlex.quote(word) for word in words.masked(argv))
    shown = "".join(letter if letter.isprintable() else "?" for letter in shown)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def _for(pid: int, now: Optional[float]) -> str:
    """How long the process has been there; when it took the lock is nowhere to be read."""
    ticks, boot = process.start_time(pid), _boot_time()
    if ticks is None or boot is None:
        return ""
    minutes = ((time.time() if now is None else now) - boot - int(ticks) / os.sysconf("SC_CLK_TCK")) / 60
    if minutes < 1:
        return " for less than a minute"
    return " for %d min" % minutes if minutes < 120 else " for %d h" % (minutes / 60)


def _boot_time() -> Optional[float]:
    try:
        with open(_PROC + "/stat", encoding="ascii", errors="replace") as source:
            return next(float(line.split()[1]) for line in source if line.startswith("btime "))
    except (OSError, StopIteration, ValueError):
        return None


def _read(pid: int, name: str) -> bytes:
    if pid <= 0:
        return b""
    try:
        with open("%s/%d/%s" % (_PROC, pid, name), "rb") as source:
            return source.read()
    except OSError:
        return b""
