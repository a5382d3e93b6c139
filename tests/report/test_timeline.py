"""What a run's times say, on small schedules that can be followed by hand. Times are seconds after 12:00."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.records import Attempt, RunRecord, epoch_seconds
from ci_tasks.report.timeline import critical_path, spans, summary_lines


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


def path(*records: RunRecord) -> list[str]:
    return [span.row for span in critical_path([*spans(records)])]


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
        "Critical path: 2 rows, 20 min",
        "  h100a  a  10 min",
        "  h100a  b  10 min",
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


def test_the_chain_leads_back_to_the_start_on_one_host() -> None:
    assert path(ran("a", "x", 0, 50), ran("b", "y", 0, 70), ran("c", "x", 50, 90), ran("d", "x", 90, 99)) == [*"acd"]


def test_the_last_to_let_go_decided_when_a_wide_row_began() -> None:
    assert path(ran("a", "x", 0, 10, 4), ran("b", "x", 0, 30, 4), ran("wide", "x", 30, 60)) == ["b", "wide"]


def test_of_those_that_let_go_together_it_is_the_one_whose_gpus_it_has() -> None:
    first = [ran("a", "x", 0, 30, 4, gpu_ids=[0, 1, 2, 3]), ran("b", "x", 0, 30.5, 4, gpu_ids=[4, 5, 6, 7])]
    assert path(*first, ran("c", "x", 30.6, 60, 4, gpu_ids=[0, 1, 2, 3])) == ["a", "c"]


def test_a_row_that_queues_on_its_host_began_when_it_had_its_gpus() -> None:
    records = [ran("a", "x", 0, 30), ran("b", "x", 1, 61, queue_seconds=29.0)]
    assert path(*records) == ["a", "b"]
    assert summary_lines(records, {"x": 8})[-1] == "GPUs busy: x 100 %"


def test_rows_shorter_than_a_glance_follow_each_other_all_the_same() -> None:
    short = [ran("a", "x", 0, 0.1, 0), ran("b", "x", 0.05, 0.15, 0), ran("c", "x", 0.16, 0.3, 0)]
    assert path(*short) == ["b", "c"]


def test_an_attempt_elsewhere_comes_before_the_one_that_made_it_good() -> None:
    moved = ran("moved", "y", 41, 80, earlier=[attempt("x", 0, 40, status="lost")])
    assert path(moved, ran("other", "y", 0, 39)) == ["moved", "moved"]


def test_an_earlier_attempt_without_times_is_left_out() -> None:
    moved = ran("moved", "y", 41, 80, earlier=[Attempt("1", "x", "blocked", "disk")])
    assert path(moved, ran("other", "y", 0, 39)) == ["other", "moved"]


def test_where_nobody_ran_the_wait_is_said() -> None:
    lines = summary_lines([ran("a", "x", 0, 30), ran("b", "x", 90, 120)], {})
    assert lines == [
        "Wall time: 2 min",
        "Critical path: 2 rows, 60 s",
        "  x  a  30 s",
        "  x  b  30 s  after waiting 60 s",
    ]


def test_of_a_long_chain_the_longest_rows_are_listed() -> None:
    lines = summary_lines([ran(f"r{at}", "x", at * 100, at * 100 + 60 + at) for at in range(30)], {"x": 8})
    assert len(lines) == 16 and lines[2].startswith("  x  r18") and lines[-2] == "  and 18 shorter"


def test_a_host_that_had_more_than_it_has_is_not_busier_than_busy() -> None:
    assert summary_lines([ran("a", "x", 0, 30), ran("b", "x", 0, 30)], {"x": 8})[-1] == "GPUs busy: x 100 %"


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("1970-01-01T00:00:01.500+00:00", 1.5),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1969-12-31T23:00:00-0100", 0.0),
        ("2026-11-21T12:00:00Z", 1795262400.0),
        ("2026-11-21 12:00:00", 1795262400.0),
        ("2026-13-21T12:00:00Z", None),
        ("now", None),
        (None, None),
    ],
)
def test_times(text: str | None, since: float | None) -> None:
    assert epoch_seconds(text) == since
