"""What earlier runs gave is kept beside their logs: neither log nor record is read again for the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.features.numbers import read_numbers
from ci_tasks.records import FAILED, PASSED, LogDigest, RunRecord, Timings
from ci_tasks.results.read_record import read_run_record


def record(**values: object) -> RunRecord:
    made = RunRecord("batch.01", "label", "row", "box", PASSED, timings=Timings(seconds=2.0, queued=0.5))
    defaults = {"log": LogDigest(0, "of the log"), "metrics": {"loss": 3.0}}
    return RunRecord(**{**vars(made), **defaults, **values})


def test_a_record_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(str(tmp_path))
    (tmp_path / "log").write_text("step 1: reward 0.5\n")
    monkeypatch.setattr(read_numbers, "runs_of_row", lambda *_: [run])
    read: list[RunDir] = []

    def load(run: RunDir) -> RunRecord | None:
        read.append(run)
        return read_run_record(run)

    monkeypatch.setattr(read_numbers, "read_run_record", load)

    write_record(run.record, record())
    (first,) = read_numbers.passed_numbers("label", "row")
    assert first.values["seconds"][0].value == 1.5 and first.values["loss"][0].value == 3.0
    assert list(read_numbers.passed_numbers("label", "row")) == [first] and len(read) == 1

    write_record(run.record, record(marks=("odd",), metrics={"loss": 4.0}))
    (marked,) = read_numbers.passed_numbers("label", "row")
    assert marked.is_marked and marked.values["loss"][0].value == 4.0 and len(read) == 2
    write_record(run.record, record(status=FAILED))
    assert list(read_numbers.passed_numbers("label", "row")) == []
