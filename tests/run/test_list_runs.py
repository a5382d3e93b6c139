"""`runs` of commands whose rows are not known yet, or never were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import write_record
from ci_tasks.records import RunRecord
from ci_tasks.results import store
from ci_tasks.results.store import write_phase
from ci_tasks.run.list_runs import show_runs


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))


def command(second: int, begun: str) -> store.Batch:
    """A command; `begun` are single letters, rows that have passed."""
    name = f"20261122-1200{second:02}-ckpt"
    batch = store.Batch(name, store.home() / "runs" / name)
    batch.path.mkdir(parents=True)
    for number, row in enumerate(begun, 1):
        run = batch.run_dir(number)
        Path(run.path).mkdir()
        id = batch.run_id(number)
        write_record(run.plan, Plan(id=id, label="ckpt", row=row, host="a"))
        write_record(run.record, RunRecord(id, "ckpt", row, "a", "passed", started_at=f"2026-11-22T12:00:{second:02}Z"))
    write_phase(batch.path, "running")
    return batch


def kill(batch: store.Batch) -> None:
    state = store.read_state(batch.path)
    assert state is not None
    dead = replace(state, pid_start="1") if processes.identity().pid_start else replace(state, pid=2**22 + 1)
    write_record(str(batch.path / "state.json"), dead)


def listed(capsys: pytest.CaptureFixture[str], **options: int) -> list[str]:
    assert show_runs(options, json=True) == 0
    return [f"{run['id'][13:15]} {run['row']} {run['status']}" for run in json.loads(capsys.readouterr().out)]


def test_a_command_without_rows_is_listed_as_long_as_it_lives_and_if_it_was_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(1, "x")
    kill(command(2, ""))
    command(3, "")
    write_phase(command(4, "").path, "ended")
    assert listed(capsys) == ["03  running", "02  lost", "01 x passed"]
