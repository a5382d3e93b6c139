"""How far the command of a batch is, as whoever looks next finds it: the process is another one's, or long gone."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.results import store
from ci_tasks.results.store import BatchState, Phase, read_state, read_state_if_readable, write_phase

DAY = 24 * 3600.0


def own(phase: Phase = "running") -> BatchState:
    me = processes.identity()
    return BatchState(phase, me.pid, me.pid_start, me.boot_id, platform.node(), time.time())


def gone() -> BatchState:
    """Of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return replace(own(), pid=ended.pid, pid_start="1")


CASES: list[tuple[str, BatchState, bool, bool]] = [
    ("a living process", own(), True, False),
    ("a command that is over", own("ended"), False, False),
    ("a process that has ended", gone(), False, True),
    ("another process with that number", replace(own(), pid_start="1"), False, True),
    ("a process before the machine restarted", replace(own(), boot_id="another boot"), False, True),
    ("another machine, a minute ago", replace(own(), machine="other", pid=1, written_at=time.time() - 60), True, False),
    ("another machine, two days ago", replace(own(), machine="other", written_at=time.time() - 2 * DAY), False, True),
    ("another machine's that is over", replace(own("ended"), machine="other"), False, False),
]


@pytest.mark.parametrize(("state", "active", "killed"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_whether_a_command_works_on_its_rows_or_was_killed(state: BatchState, active: bool, killed: bool) -> None:
    assert (state.is_active, state.was_killed) == (active, killed)


REASONS = [
    (own("preparing"), "the client was killed before its rows were prepared"),
    (own("installing"), "the client was killed during the install steps"),
    (own("running"), "the client was killed before the row began"),
    (replace(own("installing"), boot_id="another boot"), "the machine restarted during the install steps"),
    (replace(own("installing"), boot_id=None), "the client was killed during the install steps"),
    (own("ended"), "the command ended before the row began"),
]


@pytest.mark.parametrize(("state", "reason"), REASONS)
def test_why_a_row_has_not_begun(state: BatchState, reason: str) -> None:
    assert state.why_not_started == reason


def test_a_phase_is_read_as_it_was_written_with_this_process_as_the_owner(tmp_path: Path) -> None:
    for phase in ("preparing", "installing", "running", "ended"):
        write_phase(tmp_path, phase)
        state = read_state(tmp_path)
        assert state is not None
        assert (state.phase, state.pid, state.is_here) == (phase, os.getpid(), True)
        assert state.is_active == (phase != "ended")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "sleeping"}', '{"phase": "running", "pid": "1"}'])
def test_a_damaged_state_is_an_error_or_nothing_where_a_batch_is_looked_for(tmp_path: Path, text: str) -> None:
    (tmp_path / store._STATE).write_text(text)
    with pytest.raises(ValueError, match=r"state\.json"):
        read_state(tmp_path)
    assert read_state_if_readable(tmp_path) is None


def test_only_the_end_may_stay_unwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full: that the process is gone says the same."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_record", full)
    write_phase(tmp_path, "ended")
    with pytest.raises(OSError, match="No space"):
        write_phase(tmp_path, "running")
