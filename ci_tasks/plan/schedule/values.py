"""The words of placement: rows that wait and run, the hosts they may run on, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A row that waits. `seconds` is how long it is expected to take, `exclusive` names what two rows on one host
    cannot share, `hosts` where it may run (None: anywhere). `waited` is how many seconds ago it could first have been
    started, had there been room; it only matters where rows keep coming, so that they cannot pass it for ever."""

    name: str
    gpus: int
    seconds: float
    exclusive: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    image: str | None = None
    waited: float = 0.0


@dataclass(frozen=True)
class Running:
    """A row that was started. `since`: seconds it has run, or has waited on the host, already."""

    task: Task
    since: float


@dataclass(frozen=True)
class Machine:
    """A host as it stands. `slots` bounds the rows at once, `held` counts the GPUs that others hold just now; a host
    that is not `up` gets no new row. `images` are known to be there, `has_code` says that the tree is."""

    name: str
    gpus: int
    slots: int
    held: int = 0
    up: bool = True
    images: frozenset[str] = frozenset()
    has_code: bool = True
    running: tuple[Running, ...] = ()


@dataclass(frozen=True)
class Start:
    """Start the row at the position `task` of those that wait on `host`, for the reason `why`."""

    task: int
    host: str
    why: str


@dataclass(frozen=True)
class Decision:
    """What to start now, in this order; why each other row waits, by its position; and in how many seconds all rows
    that can run are expected to have ended."""

    starts: tuple[Start, ...]
    waits: Mapping[int, str]
    left: float
