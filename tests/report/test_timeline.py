"""What a run's times say, on small schedules that can be followed by hand. Times are seconds after 12:00."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.records import Attempt, RunRecord, epoch_seconds
from ci_tasks.report.results import summary_lines


def stamp(at: float) -> str:
    whole, thousandths = divmod(round(at * 1000), 1000)
    return f"2026-11-21T{12 + whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{thousandths:03d}+00:00"


def attempt(host: str, begin: float, end: float, **more: Any) -> Attempt:
    return replace(Attempt("b.01", host, "passed", started_at=stamp(begin), ended_at=stamp(end)), **more)


def ran(
    row: str, host: str, begin: float, end: float, gpus: int = 8, earlier: Sequence[Attempt] = (), **more: Any
) -> RunRecord:
    return RunRecord(
        "b.01", "l", row, host, "passed", gpus=gpus, attempts=(*earlier, attempt(host, begin, end, **more))
    )


def never(row: str) -> RunRecord:
    return RunRecord("b.01", "l", row, "h100b", "blocked", attempts=(Attempt("b.01", "h100b", "blocked"),))


def test_the_lines_below_the_table() -> None:
    records = [
        ran("a", "h100a", 0, 600),
        ran("b", "h100a", 600.2, 1200, 4, gpu_ids=[0, 1, 2, 3]),
        ran("c", "h100a", 600.3, 800, 4, gpu_ids=[4, 5, 6, 7]),
        ran("d", "h100b", 5, 900),
        never("never"),
    ]
    assert summary_lines(records, {"h100a": 8, "h100b": 8, "cpu": 0}) == [
        "Wall time: 20 min",
        "GPUs busy: h100a 83 %, h100b 75 %; overall 79 %",
    ]


@pytest.mark.parametrize(
    "records",
    [
        [],
        [ran("alone", "h", 0, 5)],
        [never("a"), never("b")],
        [ran("a", "h", 0, 5, ended_at=None), ran("b", "h", 0, 5, started_at="soon")],
    ],
)
def test_one_row_or_none_with_times_has_no_such_lines(records: list[RunRecord]) -> None:
    assert summary_lines(records, {"h": 8}) == []


def test_a_row_that_queues_on_its_host_has_its_gpus_from_then_on() -> None:
    records = [ran("a", "x", 0, 30), ran("b", "x", 1, 61, queue_seconds=29.0)]
    assert summary_lines(records, {"x": 8})[-1] == "GPUs busy: x 100 %"


def test_earlier_attempts_count_where_their_times_are_known() -> None:
    moved = ran("moved", "y", 40, 80, earlier=[attempt("x", 0, 40, status="lost")])
    other = ran("other", "y", 0, 40, earlier=[Attempt("1", "x", "blocked", "disk")])
    assert summary_lines([moved, other], {"x": 8, "y": 8})[-1] == "GPUs busy: x 50 %, y 100 %; overall 75 %"


def test_a_host_that_had_more_than_it_has_is_not_busier_than_busy() -> None:
    assert summary_lines([ran("a", "x", 0, 30), ran("b", "x", 0, 30)], {"x": 8})[-1] == "GPUs busy: x 100 %"


TIMES = {"1970-01-01T01:00:01.500+01:00": 1.5, "2026-11-21T12:00:00Z": 1795262400.0, "2026-13-21T12:00:00Z": None}


@pytest.mark.parametrize(("text", "since"), [*TIMES.items(), ("2026-11-21 12:00:00", 1795262400.0), (None, None)])
def test_times(text: str | None, since: float | None) -> None:
    assert epoch_seconds(text) == since
