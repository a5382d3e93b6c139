"""With which runs one that failed is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ci_tasks.agent.records import RunDescription
from ci_tasks.agent.run_directory import END_EXIT, RunDir, write_json
from ci_tasks.logs.causes import JobEnd
from ci_tasks.results import history, judge_run
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


def test_without_a_run_of_the_row_those_of_any_row_on_its_host_count(make: Make) -> None:
    for day, host in (("20260101", "h100a"), ("20260102", "h100b")):
        run = make(f"{day}-120000-ckpt", row="other", host=host)
        Path(run.log).write_bytes(b"step 1\n")
    history.search(RunQuery())
    assert [Path(run.path).parts[-2][:8] for run in passed_runs("ckpt", "new", 3, host="h100a")] == ["20260101"]
    assert passed_runs("ckpt", "new", 3, host="elsewhere") == []


def test_without_a_run_of_the_row_those_in_its_image_count_before_those_on_its_host(make: Make) -> None:
    for day, digest in (("20260101", "sha256:aa"), ("20260102", "sha256:bb")):
        run = make(f"{day}-120000-ckpt", row="other", digest=f"slimerl/slime@{digest}")
        Path(run.log).write_bytes(b"step 1\n")
    history.search(RunQuery())
    found = passed_runs("ckpt", "new", 3, image_digest="sha256:aa", host="h100a")
    assert [Path(run.path).parts[-2][:8] for run in found] == ["20260101"]
    found = passed_runs("ckpt", "new", 1, image_digest="sha256:cc", host="h100a")
    assert [Path(run.path).parts[-2][:8] for run in found] == ["20260102"]


def test_a_failed_run_is_read_against_runs_in_the_image_that_its_container_had(make: Make) -> None:
    passed = make("20260101-120000-ckpt", row="other", host="h100b", digest="slimerl/slime@sha256:aa")
    Path(passed.log).write_bytes(b"step 1\nValueError: of every start\nstep 2\n")
    failed = make("20260102-120000-ckpt", row="new", status="failed")
    Path(failed.log).write_bytes(b"step 1\nValueError: of every start\nstep 2\n")
    write_json(failed.environment, {"containers": [{"name": "c", "digests": ["mirror/slime@sha256:aa"]}]})
    history.search(RunQuery())
    description = RunDescription(id="20260102-120000-ckpt.01", label="ckpt", row="new", host="h100a")
    triage = judge_run.log_triage(failed, JobEnd(END_EXIT, 1), description)
    assert triage is not None and triage.line == "step 2"
