"""`numbers` and the mark on a run that passed, with the runs of a real row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

ROW = ("precision", "--host", "sim")


def _as_earlier_run(run: Path, day: int, overlay: str = "") -> None:
    """The run once more, as of that day of January."""
    batch = f"202601{day:02d}-120000-precision"
    copy = run.parents[1] / batch / "01"
    shutil.copytree(run, copy, symlinks=True)
    record = json.loads((copy / "record.json").read_text())
    times = {"started_at": f"2026-01-{day:02d}T12:00:00+00:00", "ended_at": f"2026-01-{day:02d}T12:00:05+00:00"}
    record["checkout"]["overlays"] = [{"name": overlay}] if overlay else []
    (copy / "record.json").write_text(json.dumps({**record, **times, "id": f"{batch}.01"}))
    (copy / "status.json").write_text((run / "status.json").read_text())


def test_a_run_that_passed_but_does_not_fit_is_marked_until_it_is_accepted(person: Any, tmp_path: Path) -> None:
    assert person.ci_tasks("remote", *ROW).code == 0
    (run,) = (person.home / "runs").glob("*/01")
    for day in range(1, 6):
        _as_earlier_run(run, day)
    _as_earlier_run(run, 6, "sglang")  # teaches nothing

    (row,) = person.ci_tasks("numbers", "precision", "--json").json
    assert (row["row"], row["kind"], row["runs"]) == ("tiny_parallel_check", "8 GPUs of sim, no container", 6)
    assert row["marks"] == [] and {band["deviation"] for band in row["bands"] if band["name"] != "seconds"} == {0.0}
    bands = tmp_path / "bands.json"
    assert person.ci_tasks("numbers", "precision", "--export", str(bands)).out == f"{bands}: the bands of 1 of 1 rows\n"
    same = person.ci_tasks("numbers", "precision", "--exact", "--strict")
    assert same.code == 0 and "numbers are equal, as the logs print them" in same.out

    person.edit("tiny_slime/train.py", '"--lr", type=float, default=0.1', '"--lr", type=float, default=0.2')
    strict = person.ci_tasks("remote", *ROW, "--strict")
    assert strict.code == 1
    person.edit("tiny_slime/train.py", '"--lr", type=float, default=0.2', '"--lr", type=float, default=0.3')
    shown = person.ci_tasks("remote", *ROW)
    assert shown.code == 0
    (record,) = person.records()
    assert record["status"] == "passed" and record["reason"].startswith("but ") and record["marks"]
    assert person.ci_tasks("numbers", "precision", "--bands", str(bands), "--strict").code == 1
    parted = person.ci_tasks("numbers", "precision", "--exact", "--strict")
    assert parted.code == 1 and " part at step 1: " in parted.out

    assert person.ci_tasks("numbers", "precision", "--accept", record["id"]).code == 2
    accepted = person.ci_tasks("numbers", "precision", "--accept", record["id"], "--why", "it learns faster")
    assert accepted.code == 0, accepted.err
    (row,) = person.ci_tasks("numbers", "precision", "--json").json
    assert (row["accepted"]["run"], row["accepted"]["why"]) == (record["id"], "it learns faster")
    assert row["not_seen"] == "a band takes 5 runs before the newest, and has 0"


def test_what_cannot_be_shown_is_an_error_that_says_what_to_do(person: Any, tmp_path: Path) -> None:
    (tmp_path / "bands.json").write_text("[]")
    for arguments, message in (
        (["numbers", "ckpt"], "no run of a row of ckpt that passed is kept here"),
        (["numbers", "ckpt", "--why", "x"], "--accept"),
    ):
        result = person.ci_tasks(*arguments)
        assert result.code == 2 and message in result.err
