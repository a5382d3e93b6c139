"""Processes as Linux's /proc describes them. A process that has ended, or may not be read, is None or empty."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional

from .files import content_of

_PROC = "/proc"


class Stat(NamedTuple):
    """`start`: in clock ticks since boot, which tells a process from a later one with its pid."""

    state: str
    parent: int
    session: int
    start: str

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def pids() -> List[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


def stat(pid: int) -> Optional[Stat]:
    # The command's name, in brackets, may itself hold spaces and brackets.
    fields = content_of("%s/%d/stat" % (_PROC, pid)).decode("utf-8", "replace").rpartition(")")[2].split()
    return Stat(fields[0], int(fields[1]), int(fields[3]), fields[19]) if len(fields) > 19 else None


def environ(pid: int) -> List[bytes]:
    """Its variables when it started."""
    return content_of("%s/%d/environ" % (_PROC, pid)).split(b"\0")


def children(pid: int) -> List[int]:
    found: List[int] = []
    directory = "%s/%d/task" % (_PROC, pid)
    try:
        for thread in os.listdir(directory):
            found += map(int, content_of("%s/%s/children" % (directory, thread)).split())
    except OSError:
        pass
    return found


def boot_id() -> Optional[str]:
    return content_of(_PROC + "/sys/kernel/random/boot_id").decode("ascii").strip() or None
