"""Which waiting rows may start now on one host, given its GPUs and how many may run at once."""

from __future__ import annotations

from collections.abc import Sequence


def startable(waiting: Sequence[int], running: Sequence[int], gpus: int, at_once: int) -> list[int]:
    """Positions in `waiting` (GPUs wanted by each row, in order) that may start beside `running` (GPUs held by each).

    Rows start in order. A row that does not fit lets later rows without GPUs pass, but no later row that wants GPUs:
    otherwise narrow rows would keep a wide one waiting for ever.
    """
    free, slots = gpus - sum(running), at_once - len(running)
    chosen: list[int] = []
    held_back = False
    for position, wanted in enumerate(waiting):
        if slots <= 0:
            break
        if wanted and (held_back or wanted > free):
            held_back = True
            continue
        chosen.append(position)
        free, slots = free - wanted, slots - 1
    return chosen
