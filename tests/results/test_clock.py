"""Times of runs by this machine's clock, whatever a host's says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ci_tasks.agent.records import Event, Plan, RemoteLocation, Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.report.results import summary_lines
from ci_tasks.results import store
from ci_tasks.results.judge_run import judge_run
from ci_tasks.results.runs import events_of, seconds_since_start

HOUR = 3600.0


def run_on(directory: Path, host: str, ahead: float, started: float, seconds: float | None) -> RunDir:
    """A row's run, its times by the clock of a host that is `ahead`; without `seconds` it has not ended."""
    run = RunDir(str(directory / "home/runs/20260101-120000-l" / host))
    os.makedirs(run.path)
    write_record(run.plan, Plan(id=host, row=host, host=host, gpus=4))
    write_record(run.remote, RemoteLocation(host, complete=True, clock_ahead=ahead))
    Path(run.log).write_text("step 0: {'loss': 1.0}\n")
    began = started + ahead
    Path(run.events).write_text(Event(began, "started").line() + Event(began + 1, "gpus", ids=(0,)).line())
    end = {} if seconds is None else {"end": "exit", "exit_code": 0, "ended_at": began + seconds}
    write_record(run.status, Status("running" if seconds is None else "ended", started_at=began, **end))  # type: ignore[arg-type]
    return run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "home"))


def test_a_host_whose_clock_is_an_hour_ahead_makes_no_run_an_hour_longer(tmp_path: Path) -> None:
    now = time.time() - 200
    records = [
        judge_run(run_on(tmp_path, "right", 0.0, now, 100.0)),
        judge_run(run_on(tmp_path, "ahead", HOUR, now, 100.0)),
        judge_run(run_on(tmp_path, "behind", -HOUR, now, 100.0)),
    ]
    lines = summary_lines(records, {"right": 4, "ahead": 4, "behind": 4})
    assert lines[0] == "Wall time: 1 min 40 s"
    assert lines[-1] == "GPUs busy: right 100 %, ahead 100 %, behind 100 %; overall 100 %"
    assert {record.started_at for record in records} == {records[0].started_at}


def test_events_and_what_still_runs_are_by_our_clock_too(tmp_path: Path) -> None:
    now = time.time()
    run = run_on(tmp_path, "ahead", HOUR, now - 100, None)
    assert [round(event.t - now) for event in events_of(run)] == [-100, -99]
    seconds = seconds_since_start(run)
    assert seconds is not None
    assert 100 <= seconds < HOUR
