"""What ends a run besides its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.records import Deviation, RemoteLocation
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.records import RunRecord
from ci_tasks.run.progress import kept_lines, print_results
from tests.parts.json_files import write_json

KEPT = {"workspace": "/w"}


def _run(directory: Path, id: str, kept: dict[str, str] | None) -> tuple[RunRecord, str]:
    directory.mkdir()
    run = RunDir(str(directory))
    write_json(run.status, {"state": "ended", "kept": kept})
    return RunRecord(id, "ckpt", "r", "sim", "failed"), run.log


@pytest.mark.parametrize(("kind", "retries"), [("", True), ("ssh", True), ("slurm", False)])
def test_kept_rows_have_their_next_commands(tmp_path: Path, kind: str, retries: bool) -> None:
    runs = [_run(tmp_path / "1", "b.01", None), _run(tmp_path / "2", "b.02", KEPT), _run(tmp_path / "3", "b.03", KEPT)]
    if kind:
        write_record(RunDir(str(tmp_path / "2")).remote, RemoteLocation(host="h", kind=kind, directory="/d"))
    lines = kept_lines([record for record, _ in runs], [log for _, log in runs])
    assert lines[0] == "kept: 2 rows; `ci-tasks shell b.02` opens bash there"
    assert lines[1:] == (["after an edit, `ci-tasks retry b.02` runs the failed step again"] if retries else [])


def test_nothing_is_said_where_no_row_was_kept(tmp_path: Path) -> None:
    record, log = _run(tmp_path / "1", "b.01", None)
    assert kept_lines([record], [log]) == []
    assert kept_lines([record], [""]) == [], "a row that never began has no directory"


def test_what_differed_from_ci_in_the_labels_last_run_is_counted_and_the_command_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    same, new = (Deviation(what, "merge", "tree", "yours") for what in ("code", "image"))
    ran = RunRecord("", "ckpt", "r", "sim", "passed", started_at="2026-01-01T12:00:00+00:00")
    for batch in ("20260101-120000-ckpt", "20260101-130000-other"):
        run = RunDir(str(tmp_path / "runs" / batch / "01"))
        Path(run.path).mkdir(parents=True)
        write_record(run.record, replace(ran, id=f"{batch}.01", deviations=(same,) if "ckpt" in batch else (new,)))
    now = replace(ran, id="20260102-120000-ckpt.01", deviations=(same, new))
    command = "ci-tasks report 20260102-120000-ckpt --deviations"
    for all_deviations in (False, True):
        print_results([now], [""], "b", all_deviations=all_deviations)
        shown = capsys.readouterr().out
        assert "image:  merge → tree" in shown
        assert ("code:" in shown, command in shown) == (all_deviations, not all_deviations)
