"""The runs of a host are found whatever became of them."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.agent.serving import list_runs


def write(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_run_that_was_half_removed_is_still_listed(tmp_path: Path) -> None:
    write(tmp_path / "runs/batch/01/plan.json", '{"id": "batch.01", "row": "r"}')
    write(tmp_path / "runs/batch/02/workspace/01/file")
    write(tmp_path / "runs/batch/environments/abc/run.sh")
    runs = {run.dir: (run.id, run.row, run.state) for run in list_runs.runs(str(tmp_path))}
    assert runs == {
        str(tmp_path / "runs/batch/01"): ("batch.01", "r", "planned"),
        str(tmp_path / "runs/batch/02"): ("batch/02", "", "planned"),
        str(tmp_path / "runs/batch/environments/abc"): ("environments/abc", "", "planned"),
    }
