"""How long a run waited, by the events that its runner and its script wrote."""

from __future__ import annotations

import pytest

from ci_tasks.agent.records import read_events
from ci_tasks.results.runs import queue_seconds

CASES: dict[str, tuple[list[str], float | None]] = {
    "nothing in the way": (["1 started", "2 step", "5 gpus", "9 ended"], 0.0),
    "for GPUs, before the job": (["1 started", "2 waiting", "7 gpus", "7 step", "9 ended"], 5.0),
    "in the lock script": (["1 started", "2 step", "3 waiting", "7 gpus", "9 ended"], 4.0),
    "the same wait, said again": (["1 started", "2 step", "3 waiting", "5 waiting", "7 gpus", "9 ended"], 4.0),
    "for Ray's turn and then for GPUs": (["1 started", "1 waiting", "3 step", "5 waiting", "9 gpus", "9 ended"], 6.0),
    "cancelled meanwhile": (["1 started", "2 waiting", "8 cancelled", "9 ended"], 6.0),
    "the runner vanished": (["1 started", "2 waiting"], None),
    "never begun": ([], None),
    "a clock that was set back": (["9 started", "8 waiting", "2 gpus"], 0.0),
}


@pytest.mark.parametrize(("events", "seconds"), CASES.values(), ids=CASES)
def test_the_wait_is_what_lies_between_being_on_record_and_having_all(events: list[str], seconds: float | None) -> None:
    lines = ['{"t": %s, "event": "%s"}' % tuple(event.split()) for event in events]  # noqa: UP031
    assert queue_seconds(read_events("\n".join(lines))) == seconds


@pytest.mark.parametrize("line", ["", "{", "[]", "\ufffd", '{"t": "x"}', '{"t": NaN, "event": "gpus"}', "[" * 9999])
def test_lines_that_are_no_events_do_not_count(line: str) -> None:
    lines = ['{"t": 1, "event": "started"}', '{"t": 1, "event": "waiting"}', line, '{"t": 3, "event": "gpus"}']
    assert queue_seconds(read_events("\n".join(lines))) == 2.0
