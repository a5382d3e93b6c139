"""Which waiting rows may start now on one host, given its GPUs and how many may run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """What a row takes of its host: GPUs, and names of what it cannot share with another row."""

    gpus: int
    exclusive: tuple[str, ...] = ()


def startable(waiting: Sequence[Need], running: Sequence[Need], gpus: int, at_once: int) -> list[int]:
    """Positions in `waiting` (what each row needs, in order) that may start beside `running`.

    Rows start in order. A row that does not fit lets later rows without GPUs pass, but no later row that wants GPUs:
    otherwise narrow rows would keep a wide one waiting for ever.
    """
    free, slots = gpus - sum(need.gpus for need in running), at_once - len(running)
    taken = {name for need in running for name in need.exclusive}
    chosen: list[int] = []
    held_back = False
    for position, need in enumerate(waiting):
        if slots <= 0:
            break
        if need.gpus and (held_back or need.gpus > free or not taken.isdisjoint(need.exclusive)):
            held_back = True
            continue
        chosen.append(position)
        free, slots = free - need.gpus, slots - 1
        taken.update(need.exclusive)
    return chosen
