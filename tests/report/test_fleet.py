"""A host's GPUs as cells."""

from __future__ import annotations

import pytest

from ci_tasks.report.fleet import Holder, cells, share


@pytest.mark.parametrize(
    ("gpus", "holders", "others", "drawn"),
    [
        (0, [], 0, ""),
        (8, [], 0, "........"),
        (8, [Holder("a", 4, (4, 5, 6, 7)), Holder("b", 2, (1, 0))], 0, "bb..aaaa"),
        # Of others only the number is known: the highest places that no row of ours has.
        (8, [Holder("a", 2, (6, 7))], 3, "...###aa"),
        # A row that just starts has GPUs, but which is not known yet: the lowest free ones.
        (8, [Holder("new", 2), Holder("b", 2, (0, 2))], 1, "b n b n . . . #".replace(" ", "")),
        # Fewer ids than GPUs, as while a row collects them one by one.
        (4, [Holder("a", 3, (2,))], 0, "aaa."),
        # What cannot be is drawn as far as it can: an id twice, one that the host lacks, more rows than GPUs.
        (2, [Holder("a", 1, (0,)), Holder("b", 1, (0,))], 0, "ab"),
        (2, [Holder("a", 1, (9,)), Holder("b", 2)], 5, "ab"),
        (2, [], -1, ".."),
    ],
)
def test_each_gpu_has_one_cell(gpus: int, holders: list[Holder], others: int, drawn: str) -> None:
    assert "".join(cell[0] for cell in cells(gpus, holders, others)) == drawn


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [([], "no GPU"), (["."] * 8, "8 free"), (["01", "01", "02", "#", "."], "3 ours, 1 others', 1 free")],
)
def test_cells_are_counted_by_whose_they_are(drawn: list[str], expected: str) -> None:
    assert share(drawn) == expected
