"""A host's GPUs as cells of text: which row has which, what others hold, what is free."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass

OTHERS, FREE = "#", "."


@dataclass(frozen=True)
class Holder:
    """A row that has GPUs of the host: what its cells say, how many it has, and which, as soon as that is known."""

    label: str
    gpus: int
    ids: tuple[int, ...] = ()


def cells(gpus: int, holders: Sequence[Holder], others: int) -> list[str]:
    """One cell a GPU, in the order of their ids. What has no id yet, a row that just starts or others' GPUs, of which
    only the number is known, takes free places: rows the lowest, others the highest."""
    labels = [""] * max(gpus, 0)
    left: list[str] = []
    for holder in holders:
        placed = [id for id in dict.fromkeys(holder.ids) if 0 <= id < gpus and not labels[id]]
        for id in placed:
            labels[id] = holder.label
        left += [holder.label] * (max(holder.gpus, len(holder.ids)) - len(placed))
    free = [at for at, cell in enumerate(labels) if not cell]
    for at, label in zip(free, left, strict=False):
        labels[at] = label
    for at in [at for at in reversed(free) if not labels[at]][: max(others, 0)]:
        labels[at] = OTHERS
    return [cell or FREE for cell in labels]


def share(drawn: Sequence[str]) -> str:
    """`4 ours, 2 others', 2 free` of the cells of one host or of several; `no GPU` of none."""
    others, free = drawn.count(OTHERS), drawn.count(FREE)
    counts = ((len(drawn) - others - free, "ours"), (others, "others'"), (free, "free"))
    return ", ".join(f"{count} {whose}" for count, whose in counts if count) or "no GPU"
