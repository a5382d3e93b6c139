"""The history (`ci_tasks.results.index`) says what the run directories say, and looks only at those that can have
changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.records import RunRecord, Timings
from ci_tasks.results import history
from ci_tasks.results.history import RunQuery
from ci_tasks.results.load import load_record
from ci_tasks.results.runs import record_not_started
from ci_tasks.results.store import Phase, write_phase

Make = Callable[..., RunDir]


def _shown() -> dict[str, str]:
    return {record.id.removeprefix("20260101-120000-"): record.status for record in history.search(RunQuery())}


@pytest.fixture
def long_ago(home: Path) -> Callable[[], None]:
    """Makes every directory one that changed a while ago, so that its time can be relied on."""

    def turn_back() -> None:
        before = time.time() - 3600
        for directory, _, _ in os.walk(home / "runs", topdown=False):
            os.utime(directory, (before, before))

    return turn_back


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run directories that a catch-up has read."""
    read_runs: list[str] = []

    def reading(run: RunDir) -> RunRecord:
        read_runs.append("/".join(Path(run.path).parts[-2:]).removeprefix("20260101-120000-"))
        return load_record(run)

    monkeypatch.setattr(history, "load_record", reading)
    return read_runs


def test_what_has_ended_is_not_read_again_nor_is_a_plan_that_nobody_runs(
    make: Make, long_ago: Callable[[], None], loaded: list[str]
) -> None:
    for number in (1, 2):
        make(number=number)
    make("20260101-120000-plan", status="planned")
    make("20260101-120000-live", status="running")
    long_ago()
    history.labels()
    assert sorted(loaded) == ["ckpt/01", "ckpt/02", "live/01", "plan/01"]
    loaded.clear()
    history.labels()
    assert loaded == ["live/01"]


def test_a_change_within_a_tick_of_the_clock_is_seen(make: Make) -> None:
    directory = make(status="planned").path
    assert _shown() == {"ckpt.01": "planned"}
    before = os.stat(directory)
    make(status="running")
    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(history.search(RunQuery(status=("running",)))) == 1


def test_a_run_that_ends_while_it_is_looked_at_has_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(run: RunDir) -> RunRecord:
        before = load_record(run)
        record_not_started(run, "cancelled", "meanwhile")
        return before

    monkeypatch.setattr(history, "load_record", ends)
    make(status="running")
    assert history.labels() == ["ckpt"]  # which reads that it runs
    assert [tally.counts for tally in history.flakes(RunQuery(label="ckpt"))] == [{"cancelled": 1}]


def test_a_row_that_joins_an_old_batch_is_found(make: Make, long_ago: Callable[[], None]) -> None:
    make(number=1)
    long_ago()
    assert _shown() == {"ckpt.01": "passed"}
    make(number=2, status="running")
    assert _shown() == {"ckpt.02": "running", "ckpt.01": "passed"}


def test_a_run_whose_runner_is_gone_is_settled_as_it_is_found(make: Make) -> None:
    run = make(status="running", timeout_minutes=1.0, test="t.py")
    Path(run.status).write_text('{"state": "running", "started_at": 1.0, "pid": 0}')
    assert _shown() == {"ckpt.01": "lost"}
    assert Path(run.record).exists()


def test_removed_runs_stay_in_the_history_and_say_that_their_files_are_gone(make: Make, home: Path) -> None:
    make(number=1, status="failed", reason="boom")
    make(number=2, status="running")
    assert len(_shown()) == 2
    shutil.rmtree(home / "runs")
    (record,) = history.search(RunQuery())
    assert (record.id, record.reason, record.files_gone) == ("20260101-120000-ckpt.01", "boom", True)
    assert record.timings == Timings(10.0, 0.0)
    (attempt,) = record.attempts
    assert (attempt.host, attempt.status, attempt.gpu_uuids) == ("h100a", "failed", ("GPU-a", "GPU-b"))
    assert record.checkout and record.checkout.commit == "abc0"


def test_a_record_that_changed_behind_our_back_counts_as_it_is(make: Make) -> None:
    make(status="lost")
    assert _shown() == {"ckpt.01": "lost"}
    make(status="passed")
    assert _shown() == {"ckpt.01": "passed"}
    assert history.search(RunQuery(status=("lost",))) == []


def test_a_record_may_be_written_again_while_its_command_runs(make: Make) -> None:
    batch = Path(make(status="failed").path).parent
    phases: list[tuple[Phase, str]] = [("running", "failed"), ("running", "blocked"), ("ended", "passed")]
    for phase, status in phases:
        write_phase(batch, phase)
        make(status=status)
        assert _shown() == {"ckpt.01": status}
    assert [tally.counts for tally in history.flakes(RunQuery(label="ckpt"))] == [{"passed": 1}]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"id": 1, "row": [], "timings": 3, "status": null}'])
def test_a_record_that_is_none_spoils_nothing(text: str, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make(number=1)
    Path(make(number=2).record).write_text(text)
    assert _shown()["ckpt.01"] == "passed"
    assert history.durations("ckpt") == {"row-1": 10.0}
    assert len(capsys.readouterr().err.splitlines()) <= 1


@pytest.mark.parametrize("name", ["1", "002", "²²", "source", "99999999999999999999", "01.bak"])
def test_what_is_no_row_is_left_out(name: str, make: Make, home: Path) -> None:
    make()
    (home / "runs" / "20260101-120000-ckpt" / name).mkdir()
    assert _shown() == {"ckpt.01": "passed"}
