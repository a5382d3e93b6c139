"""NCCL's account of its communicators: the answer of its RAS service to `verbose status`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass

_LAUNCHED = re.compile(r"has launched up to operation (\d{1,18}) -- GPU \d{1,4} managed by process (\d{1,10})")
_HEAD = re.compile(r"different (\w{1,40}) operation counts")
_MAX_TEXT = 1 << 20


@dataclass(frozen=True)
class RasAnswer:
    """`counts` are the operations that each process has begun, where NCCL saw that they differ; `operation` is which.
    The processes are named by their pids, since a rank there is one of its communicator."""

    operation: str = ""
    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def behind(self) -> tuple[int, ...]:
        most = max(self.counts.values(), default=0)
        return tuple(sorted(pid for pid, count in self.counts.items() if count < most))


def read_ras(text: str) -> RasAnswer:
    """The first mismatch that the answer tells of; nothing where there is none, or where communicators contradict each
    other about a process."""
    text = text[:_MAX_TEXT]
    head = _HEAD.search(text)
    counts: dict[int, int] = {}
    for count, pid in _LAUNCHED.findall(text):
        if counts.setdefault(int(pid), int(count)) != int(count):
            return RasAnswer()
    return RasAnswer(head[1] if head else "", counts)
