"""With which runs one that failed is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import history
from ci_tasks.results.history import RunQuery
from ci_tasks.results.index import passed_runs

Make = Callable[..., RunDir]


def test_the_newest_runs_of_the_same_row_that_passed_and_have_a_log(make: Make) -> None:
    for day, fields in enumerate([{}, {}, {"status": "failed"}, {"row": "other"}, {}, {}], 1):
        run = make(f"2026010{day}-120000-ckpt", **{"row": "async", **fields})
        if day != 6:
            Path(run.log).write_bytes(b"step 1\n")
    history.search(RunQuery())  # which takes them in
    assert [Path(run.path).parts[-2][:8] for run in passed_runs("ckpt", "async", 3)] == ["20260105", "20260102"]
    assert passed_runs("ckpt", "none", 3) == []
