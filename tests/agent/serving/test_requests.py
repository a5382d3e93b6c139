"""The runs of a host are found whatever became of them."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.agent.serving import requests


def write(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_run_that_was_half_removed_is_still_listed(tmp_path: Path) -> None:
    write(tmp_path / "runs/batch/01/plan.json", '{"id": "batch.01", "row": "r"}')
    write(tmp_path / "runs/batch/02/workspace/01/file")
    write(tmp_path / "runs/batch/environments/abc/run.sh")
    runs = {run.dir: (run.id, run.is_row, run.state) for run in requests.list_runs(str(tmp_path))}
    assert runs == {
        str(tmp_path / "runs/batch/01"): ("batch.01", True, "planned"),
        str(tmp_path / "runs/batch/02"): ("batch.02", True, "planned"),
        str(tmp_path / "runs/batch/environments/abc"): ("batch/environments/abc", False, "planned"),
    }


def test_a_run_is_called_as_its_directory_is_whatever_its_plan_says(tmp_path: Path) -> None:
    write(tmp_path / "runs/batch/01/plan.json", '{"id": "another.07", "row": ""}')
    (run,) = requests.list_runs(str(tmp_path))
    assert (run.id, run.is_row) == ("batch.01", True)


def test_a_directory_that_no_run_is_called_by_is_not_listed(tmp_path: Path) -> None:
    write(tmp_path / "runs/bat\nch/01/plan.json")
    write(tmp_path / "runs/batch/01/plan.json")
    assert [run.id for run in requests.list_runs(str(tmp_path))] == ["batch.01"]


def test_a_link_is_no_run(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/plan.json")
    (tmp_path / "runs/batch").mkdir(parents=True)
    (tmp_path / "runs/batch/01").symlink_to(tmp_path / "elsewhere")
    assert requests.list_runs(str(tmp_path)) == []
