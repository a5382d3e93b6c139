"""What is said of a machine beside a failure."""

from __future__ import annotations

import pytest

from ci_tasks.records import Attempt, RunRecord
from ci_tasks.results.machines import MachineRun
from ci_tasks.run import machine_notes as notes

ROW = ("ckpt", "async[a b]")


def _runs(other: str = "") -> list[MachineRun]:
    runs = [MachineRun(at, ROW, f"t{at}", "h100a", {f"GPU-{at % 4}": at % 4}, failed=at % 4 == 3) for at in range(80)]
    return [*runs, MachineRun(99, ROW, "t99", other, {"GPU-x": 0}, failed=False)] if other else runs


def _record(gpu: int, status: str = "failed", host: str = "h100a") -> RunRecord:
    attempt = Attempt("b.01", host, status, gpu_ids=(gpu,), gpu_uuids=(f"GPU-{gpu}",))
    return RunRecord("b.01", *ROW, host, status, gpus=1, attempts=(attempt,))


def _notes(monkeypatch: pytest.MonkeyPatch, record: RunRecord, runs: list[MachineRun]) -> list[str]:
    monkeypatch.setattr(notes, "recent_machine_runs", lambda: runs)
    return list(notes.machine_notes([record]).values())


def test_a_failure_on_a_gpu_that_is_worse_than_its_peers_names_it_and_the_run_that_would_exonerate_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (note,) = _notes(monkeypatch, _record(3), _runs("h100b/node1"))
    assert note.startswith("GPU 3 of h100a failed this row 20 of 20 times, other GPUs there 0 of 60 (by chance: p = ")
    assert note.endswith("`ci-tasks remote --host h100b ckpt --only 'async[a b]'`")
    (note,) = _notes(monkeypatch, _record(3), _runs())
    assert note.endswith("`ci-tasks remote --host h100a ckpt --only 'async[a b]' --repeat 8`")


def test_nothing_is_said_of_another_gpu_another_host_or_a_row_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    for record in (_record(2), _record(3, host="h100b"), _record(3, "passed"), _record(3, "blocked")):
        assert not _notes(monkeypatch, record, _runs())
