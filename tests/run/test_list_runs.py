"""`runs` of commands for several hosts: rows that no host has got have no run directory, and are listed too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import write_record
from ci_tasks.records import RunRecord
from ci_tasks.results import batch_state, store
from ci_tasks.results.batch_state import Phase, write_phase
from ci_tasks.run.events import JOURNAL, Journal
from ci_tasks.run.list_runs import RunFilterOptions, show_runs
from tests.run.test_events import placed, prepared


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path))


def command(second: int, rows: str, begun: str) -> store.Batch:
    """A command for two hosts; `rows` are single letters, those `begun` have passed."""
    name = f"20261122-1200{second:02}-ckpt"
    batch = store.Batch(name, store.home() / "runs" / name)
    batch.path.mkdir(parents=True)
    Journal(batch).write(prepared(batch, tuple(rows)))
    for number, row in enumerate(begun, 1):
        run = batch.run_dir(number)
        Path(run.path).mkdir()
        id = batch.run_id(number)
        write_record(run.plan, Plan(id=id, label="ckpt", row=row, host="a"))
        write_record(run.record, RunRecord(id, "ckpt", row, "a", "passed", started_at=f"2026-11-22T12:00:{second:02}Z"))
        Journal(batch).write(placed(batch, row, number))
    write_phase(batch.path, "running")
    return batch


def kill(batch: store.Batch) -> None:
    state = batch_state.read_state(batch.path)
    assert state is not None
    dead = replace(state, pid_start="1") if processes.identity().pid_start else replace(state, pid=2**22 + 1)
    write_record(str(batch.path / "state.json"), dead)


def listed(capsys: pytest.CaptureFixture[str], **options: int) -> list[str]:
    assert show_runs(RunFilterOptions(**options), json=True) == 0  # type: ignore[arg-type]
    return [f"{run['id'][13:15]} {run['row']} {run['status']}" for run in json.loads(capsys.readouterr().out)]


def test_rows_of_a_killed_command_are_lost_before_those_of_older_commands(capsys: pytest.CaptureFixture[str]) -> None:
    command(1, "x", "x")
    kill(command(2, "abc", "a"))
    assert listed(capsys) == ["02 b lost", "02 c lost", "02 a passed", "01 x passed"]


@pytest.mark.parametrize(("phase", "waiting"), [("running", ["02 b waiting"]), ("ended", [])])
def test_rows_wait_as_long_as_their_command_lives(
    phase: Phase, waiting: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_phase(command(2, "ab", "a").path, phase)
    assert listed(capsys) == [*waiting, "02 a passed"]


def test_a_row_whose_directory_was_removed_had_begun(capsys: pytest.CaptureFixture[str]) -> None:
    batch = command(2, "ab", "a")
    Journal(batch).write(placed(batch, "b", 2))
    kill(batch)
    assert listed(capsys) == ["02 a passed"]


def test_commands_before_the_last_one_that_is_listed_are_not_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    kill(command(1, "ab", "a"))
    command(2, "x", "x")
    assert listed(capsys, limit=1) == ["02 x passed"]


def test_a_damaged_journal_hides_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    batch = command(2, "ab", "a")
    (batch.path / JOURNAL).write_text('{"event": "run_prepared"}\n')
    assert listed(capsys) == ["02 a passed"]
