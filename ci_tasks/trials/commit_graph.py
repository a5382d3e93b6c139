"""Which commits contain which: the shape of the history between the good and the bad end.

Position 0 stands for the good end and all before it; positions 1 to n are the commits that could be the culprit, each
after its parents, and n is the bad end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property


class CommitGraph:
    """`parents[i]` are the positions of the parents of position i + 1; none means that they lie before the good end."""

    def __init__(self, parents: Sequence[Sequence[int]]) -> None:
        self.parents: tuple[tuple[int, ...], ...] = ((), *(tuple(commit_parents) or (0,) for commit_parents in parents))
        for position, above in enumerate(self.parents):
            if any(not 0 <= parent < position for parent in above):
                raise ValueError(f"position {position} comes before a parent of it: {above}")

    @classmethod
    def linear(cls, count: int) -> CommitGraph:
        """`count` commits after the good end, each with one parent."""
        return cls([(position,) for position in range(count)])

    @property
    def bad(self) -> int:
        """The position of the bad end."""
        return len(self.parents) - 1

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Bit c of number x: whether x contains c. Every commit contains itself and position 0: what is older than
        the good end is everywhere."""
        masks: list[int] = []
        for position, above in enumerate(self.parents):
            mask = 1 << position
            for parent in above:
                mask |= masks[parent]
            masks.append(mask)
        return tuple(masks)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Bit x of number c: whether x contains c."""
        masks = [1 << position for position in range(len(self))]
        for position in range(self.bad, 0, -1):
            for parent in self.parents[position]:
                masks[parent] |= masks[position]
        return tuple(masks)
