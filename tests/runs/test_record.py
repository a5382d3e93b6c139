"""record.json: the fields that design.md names, from a run's directory alone."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.runner import process
from ci_tasks.runner.layout import RunDir, write_json
from ci_tasks.runs import record

FIELDS = {"id", "label", "row", "host", "status", "exit_code", "started_at", "ended_at", "timings", "checkout", "gpus"}
FIELDS |= {"log", "evidence", "triage", "deviations", "environment"}
SEEN = {"what": "pull", "ci": "always", "here": "never", "why": "hosts.yaml pull"}
PLAN = {
    "id": "b.01",
    "label": "ppo",
    "row": "r",
    "host": "local",
    "test": "tests/t.py",
    "workspace": "/no such directory",
    "timeout_minutes": 90,
    "gpus": 2,
    "runtime": "docker",
    "image": "slime:latest",
    "checkout": {"path": "/c", "commit": "1", "tree": "2", "dirty": []},
    "deviations": [{**SEEN, "here": "?"}, {**SEEN, "what": "other"}],
}
STATUS = {"state": "ended", "end": "exit", "exit_code": 0, "started_at": 100.0, "ended_at": 102.5, "log_bytes": 7}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(str(tmp_path))
    os.makedirs(run.artifacts)
    write_json(run.plan, PLAN)
    write_json(run.status, {**STATUS, "log_sha256": "abc"})
    Path(run.log).write_text("Acquired GPUs: 1,3\nstep 1: {'a': 1}\n")
    return run


def test_the_record_has_the_fields_of_the_design(run: RunDir) -> None:
    found = record.settle(run)
    assert set(found) >= FIELDS
    assert (found["status"], found["exit_code"], found["gpu_ids"]) == ("passed", 0, [1, 3])
    assert found["log"] == {"bytes": 7, "sha256": "abc"}
    assert found["timings"] == {"seconds": 2.5, "queued": None}
    assert found["started_at"] == "1970-01-01T00:01:40.000+00:00"
    assert set(found["checkout"]) == {"path", "commit", "tree", "dirty"}
    assert json.loads(Path(run.record).read_text()) == found == record.load(run)


def test_what_the_adapter_saw_replaces_what_the_plan_foresaw(run: RunDir) -> None:
    write_json(run.docker, [{"runtime": "docker", "deviations": [SEEN]}, "not a call", {"deviations": [SEEN]}])
    assert record.settle(run)["deviations"] == [{**SEEN, "what": "other"}, SEEN]


def test_docker_can_only_block_a_run_that_called_it(run: RunDir) -> None:
    Path(run.log).write_text("docker: Error response from daemon: denied\n")
    write_json(run.status, {**STATUS, "exit_code": 125})
    assert record.settle(run)["status"] == "failed"
    write_json(run.docker, [{"runtime": "docker"}])
    assert record.settle(run)["status"] == "blocked"


def test_junit_counts_and_half_of_one_does_not(run: RunDir) -> None:
    whole = '<testsuite><testcase name="a"><failure message="boom"/></testcase></testsuite>'
    Path(run.junit).write_text(whole)
    assert record.settle(run)["reason"] == "exit code 0, but a: boom"
    Path(run.junit).write_text(whole[:-9])
    assert record.settle(run)["evidence"]["kind"] == "metrics"


STATES: list[tuple[str, dict[str, Any] | None, str]] = [
    ("not started", None, "planned"),
    ("running", {"state": "running", "started_at": 1.0, **process.identity()}, "running"),
    ("runner gone", {"state": "running", "started_at": 1.0, **process.identity(), "pid_start": "0"}, "lost"),
    ("ended", STATUS, "passed"),
]


@pytest.mark.parametrize(("status", "said"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_a_run_without_a_record_is_what_its_directory_says(
    run: RunDir, status: dict[str, Any] | None, said: str
) -> None:
    os.unlink(run.status)
    if status is not None:
        write_json(run.status, status)
    assert record.load(run)["status"] == said
    assert os.path.exists(run.record) == (said in ("lost", "passed"))


def test_a_run_that_could_not_begin_says_so(run: RunDir) -> None:
    found = record.not_begun(run, "blocked", "no GPU")
    assert (found["status"], found["reason"], found["exit_code"]) == ("blocked", "no GPU", None)
    assert record.load(run) == found


def test_without_a_log_there_is_no_evidence_but_a_verdict(run: RunDir) -> None:
    os.unlink(run.log)
    write_json(run.plan, {**PLAN, "entry_point": False})
    assert record.settle(run)["status"] == "vacuous"


def test_a_run_of_another_host_is_over_when_all_of_it_is_here(run: RunDir) -> None:
    """The status comes before the rest: an end that is known does not mean that the log is whole."""
    write_json(run.remote, {"host": "box", "complete": False})
    assert record.load(run)["status"] == "running"
    assert not os.path.exists(run.record)
    write_json(run.remote, {"host": "box", "complete": True})
    assert record.load(run)["status"] == "passed"


def test_what_the_runner_found_out_about_the_machine_is_in_the_record(run: RunDir) -> None:
    write_json(run.environment, {"driver": "570.1", "image": "changed by nobody"})
    found = record.settle(run)["environment"]
    assert (found["runtime"], found["driver"]) == ("docker", "570.1")


LINES = [
    (b"", []),
    (b"a\nb", [b"a\n", b"b"]),
    (b"x" * 5_000_000 + b"\nafter\n", [b"x" * 65536, b"after\n"]),
    (b"x" * 65536 + b"\ny\n", [b"x" * 65536, b"y\n"]),
    (b"x" * 65535 + b"\ny\n", [b"x" * 65535 + b"\n", b"y\n"]),
]


@pytest.mark.parametrize(("data", "lines"), LINES, ids=range(len(LINES)))
def test_a_line_is_bounded_and_the_next_one_is_whole(data: bytes, lines: list[bytes]) -> None:
    assert list(record._lines(io.BytesIO(data))) == lines


def test_of_a_long_progress_bar_the_end_is_read() -> None:
    [line] = record._lines(io.BytesIO(b"\r".join(b"%07d%%" % number for number in range(100_000)) + b"\n"))
    assert line.endswith(b"\r0099999%\n")
    assert len(line) <= 65536
