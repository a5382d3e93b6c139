"""What becomes of a run by Slurm's word and its runner's; see the table in fate.py."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.runner import layout
from ci_tasks.runner.slurm.fate import fate, is_sure
from ci_tasks.runner.slurm.states import UNKNOWN, State

WAITS: dict[str, Any] = {"state": "running", "phase": "waiting"}
BEGUN = {"state": "running", "boot_id": "b"}
CUT = {"state": "ended", "boot_id": "b", "end": "cancelled"}
KEPT = "the runner's word"


@pytest.mark.parametrize(
    ("slurm", "status", "end", "code"),
    [
        # A signal ended it: the runner cannot know why, Slurm does.
        ("TIMEOUT", CUT, layout.END_TIMEOUT, None),
        ("DEADLINE", BEGUN, layout.END_TIMEOUT, None),
        ("CANCELLED", CUT, layout.END_CANCELLED, None),
        ("PREEMPTED", CUT, layout.END_EXIT, 125),
        ("OUT_OF_MEMORY", BEGUN, layout.END_EXIT, 137),
        ("NODE_FAIL", BEGUN, None, None),
        ("BOOT_FAIL", WAITS, layout.END_EXIT, 125),
        # Nothing of Slurm's ended it.
        ("FAILED", CUT, KEPT, None),
        ("COMPLETED", CUT, KEPT, None),
        # The batch script ended without the runner's word.
        ("FAILED", BEGUN, None, None),
        ("FAILED", WAITS, layout.END_EXIT, 125),
        # Nobody knows it any more.
        (UNKNOWN, BEGUN, None, None),
        (UNKNOWN, WAITS, layout.END_CANCELLED, None),
        (UNKNOWN, CUT, KEPT, None),
        # Cancelled before it began.
        ("CANCELLED", WAITS, layout.END_CANCELLED, None),
    ],
)
def test_slurm_decides_where_a_runner_was_cut_short(slurm: str, status: Any, end: str | None, code: int | None) -> None:
    found = fate(State(slurm, node="gpu1"), status, "python3: command not found")
    if end == KEPT:
        assert found is None
    else:
        assert found is not None
        assert (found.end, found.exit_code) == (end, code)


@pytest.mark.parametrize(
    ("slurm", "status", "line"),
    [
        (State("CANCELLED", by="1000"), CUT, "ci-tasks: Slurm ended the job (CANCELLED by uid 1000)"),
        (State("NODE_FAIL", node="gpu1"), BEGUN, "ci-tasks: Slurm ended the job (NODE_FAIL): its node failed, on gpu1"),
        (
            State("FAILED", node="gpu1"),
            WAITS,
            "ci-tasks: blocked: the job could not begin on gpu1 (FAILED): python3: command not found",
        ),
    ],
)
def test_the_log_says_so_in_one_line(slurm: State, status: Any, line: str) -> None:
    found = fate(slurm, status, "python3: command not found")
    assert found is not None
    assert found.line == line


@pytest.mark.parametrize(
    ("status", "sure"),
    [
        ({"state": "ended", "end": "exit", "exit_code": 0}, True),
        ({"state": "ended", "end": "exit", "exit_code": 3}, True),
        ({"state": "ended", "end": "timeout"}, True),
        ({"state": "ended", "end": "exit", "exit_code": 143}, False),
        ({"state": "ended", "end": "exit", "exit_code": 1, "signalled": True}, False),
        ({"state": "ended", "end": "cancelled"}, False),
        ({"state": "ended", "end": "cancelled", "concluded": True}, True),
        ({"state": "ended", "end": None}, False),
        (BEGUN, False),
    ],
)
def test_slurm_is_asked_only_about_an_end_that_a_signal_may_have_made(status: Any, sure: bool) -> None:
    assert is_sure(status) is sure
