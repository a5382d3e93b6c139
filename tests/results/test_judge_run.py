"""record.json: the fields that design.md names, from a run's directory alone."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import safe_output
from ci_tasks.agent import processes
from ci_tasks.agent.finish import ARCHIVE
from ci_tasks.agent.hang import HangFacts, ProcessFacts
from ci_tasks.agent.nvidia_smi import rows_of
from ci_tasks.agent.records import Checkout, GpuProcessSample, GpuSample, read_events
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.records import RunRecord
from ci_tasks.results import judge_run as judging
from ci_tasks.results.load import UnreadableRun, load_record
from ci_tasks.results.runs import queue_seconds, record_not_started
from tests.parts.golden import golden_value
from tests.parts.json_files import write_json

FIELDS = {"id", "label", "row", "host", "status", "exit_code", "started_at", "ended_at", "timings", "checkout", "gpus"}
FIELDS |= {"log", "evidence", "triage", "deviations", "environment", "attempts", "version"}
SEEN = {"what": "pull", "ci": "always", "here": "never", "why": "hosts.yaml pull"}
PLAN = {
    "id": "b.01", "label": "ppo", "row": "r", "host": "local", "test": "tests/t.py",
    "workspace": "/no such directory", "timeout_minutes": 90, "gpus": 2, "runtime": "docker", "image": "slime:latest",
    "checkout": {"path": "/c", "commit": "1", "tree": "2", "dirty": []},
    "deviations": [{**SEEN, "here": "?"}, {**SEEN, "what": "other"}],
}  # fmt: skip
GOLDEN = Path(__file__).with_name("data") / "records.json"
CALL = {"ci": [], "here": [], "runtime": "docker"}
STATUS = {"state": "ended", "end": "exit", "exit_code": 0, "started_at": 100.0, "ended_at": 102.5, "log_bytes": 7}


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunDir]:
    """A run directory; the whole record that a test makes of it is as in the golden file."""
    run = RunDir(str(tmp_path))
    os.makedirs(run.artifacts)
    write_json(run.plan, PLAN)
    write_json(run.status, {**STATUS, "log_sha256": "abc"})
    Path(run.log).write_text("Acquired GPUs: 1,3\nstep 1: {'a': 1}\n")
    yield run
    if os.path.isfile(run.record):
        record = Path(run.record).read_text().replace(str(tmp_path), "RUN")
        assert golden_value(GOLDEN, request.node.name, record) == record


def test_the_record_has_the_fields_of_the_design(run: RunDir) -> None:
    judged = judging.judge_run(run)
    assert (judged.status, judged.exit_code, judged.gpu_ids) == ("passed", 0, (1, 3))
    written = json.loads(Path(run.record).read_text())
    assert set(written) >= FIELDS and set(written["checkout"]) >= {"path", "commit", "tree", "dirty"}
    assert load_record(run) == judged


STEP = '{"t": 1, "event": "step", "name": "Test"}\n'


@pytest.mark.parametrize(("event", "status"), [("step", "passed"), ("started", "vacuous")])
def test_a_job_that_skipped_each_step_has_shown_nothing(run: RunDir, event: str, status: str) -> None:
    Path(run.events).write_text(STEP.replace("step", event))
    assert judging.judge_run(run).status == status


def test_archives_that_were_withheld_are_named(run: RunDir) -> None:
    """A file that was left out for another reason is in left-out.json alone."""
    left = [{"place": "host", "path": path, "bytes": None, "why": why} for path, why in (("a", "x"), ("b.gz", ARCHIVE))]
    write_json(os.path.join(run.artifacts, "left-out.json"), {"files": left})
    (deviation,) = (item for item in judging.judge_run(run).deviations if item.what == "artifacts")
    assert (deviation.here, deviation.why) == ("withheld: b.gz", f"the run has secrets: {ARCHIVE}")


def test_what_other_rows_changed_of_the_shared_install_steps_is_a_deviation(run: RunDir) -> None:
    Path(run.events).write_text(STEP + '{"t": 1, "event": "changed checkout", "name": "changed since: a.py"}\n')
    (deviation,) = (item for item in judging.judge_run(run).deviations if item.what == "checkout")
    assert (deviation.ci, deviation.here) == ("created for each job", "changed since: a.py")


STACKS = """Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/job/t.py", line 5 in load
"""
HANGS = ProcessFacts(
    7, 1, argv=("python", "t.py"), python=True, wchan="futex_wait_queue", stacks=STACKS, same_stacks=True
)


@pytest.mark.parametrize("end", ["timeout", "exit"])
def test_why_a_row_hung_is_its_reason_where_its_timeout_ended_it(run: RunDir, end: str) -> None:
    write_json(run.status, {**STATUS, "end": end, "exit_code": 1})
    os.makedirs(os.path.dirname(run.hang))
    write_record(run.hang, HangFacts(processes=(HANGS,), reason="timeout"))
    judged = judging.judge_run(run)
    if end == "exit":
        assert judged.hang is None, "it went on after the look"
        return
    assert judged.hang is not None
    assert judged.reason == "timeout after 90 min: t.py (pid 7) waits in queue.get at t.py:5, in load"


def test_a_failure_that_ci_goes_on_after_says_so(run: RunDir) -> None:
    write_json(run.plan, {**PLAN, "may_fail": True})
    write_json(run.status, {**STATUS, "exit_code": 3})
    judged = judging.judge_run(run)
    assert (judged.status, judged.counted_status) == ("failed", "passed")


def test_a_run_is_an_attempt_with_its_host_job_gpus_and_image(run: RunDir) -> None:
    slurm, digest = {"job": "12", "node": "gpu7"}, "slimerl/slime@sha256:12"
    write_json(run.status, {**STATUS, "slurm": slurm, "queue_seconds": 40.0})
    gpus = [{"index": at, "name": "H100", "memory": "80 GiB", "uuid": f"GPU-{at}"} for at in range(4)]
    write_json(run.environment, {"gpus": gpus, "containers": [{"name": "c", "digests": [digest]}]})
    lines = ['{"t": 1, "event": "started"}', '{"t": 2, "event": "waiting"}', '{"t": 9, "event": "gpus"}']
    Path(run.events).write_text(STEP + "\n".join(lines))
    (attempt,) = judging.judge_run(run).attempts
    assert (attempt.slurm_job_id, attempt.gpu_uuids) == ("12", ("GPU-1", "GPU-3"))


def test_a_row_that_ran_out_of_gpu_memory_says_who_held_it(run: RunDir) -> None:
    write_json(run.status, {**STATUS, "exit_code": 1, "gpu_uuids": ["GPU-1"]})
    Path(run.log).write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    held = (GpuProcessSample(7, 71680, "other", "vllm"),)
    sample = GpuSample(101.0, 1, "GPU-1", used=71680, total=143360, processes=held)
    Path(run.gpu_samples).write_bytes(rows_of([sample], header=True) + b"no row of ours\n")
    judged = judging.judge_run(run)
    assert judged.reason.endswith("; GPU 1 used most memory at 00:01:41 UTC: others 70 GiB, of 140 GiB")
    assert load_record(run) == judged


@pytest.mark.parametrize(
    ("slurm", "what", "here"),
    [({"job": "12", "exit_code": 0}, [], []), ({"job": "12"}, ["exit code"], ["not verified by Slurm"])],
)
def test_an_exit_code_that_slurm_does_not_confirm_is_a_deviation(
    run: RunDir, slurm: dict[str, Any], what: list[str], here: list[str]
) -> None:
    write_json(run.status, {**STATUS, "slurm": slurm})
    deviations = [item for item in judging.judge_run(run).deviations if item.what == "exit code"]
    assert ([item.what for item in deviations], [item.here for item in deviations]) == (what, here)


WRONG: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "not JSON"),
    "another version": ('{"version": "99.0"}', "version: this is format '99.0'"),
    "a pipe": ("", "it is not a regular file"),
    "a text where a number belongs": ('{"id": "b.01", "label": "l", "row": "r", "host": "h", "status": 3}', "status: "),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG)
def test_a_record_that_is_none_is_an_error_that_names_file_and_key(run: RunDir, text: str, expected: str) -> None:
    Path(run.record).write_text(text) if text else os.mkfifo(run.record)
    with pytest.raises(UnreadableRun, match=re.escape(run.record)) as error:
        load_record(run)
    assert expected in error.value.message


@pytest.mark.parametrize("name", ["log", "events.jsonl", "artifacts/junit.xml", "docker.json", "environment.json"])
@pytest.mark.parametrize("secrets", [[], ["correct-horse"]], ids=["plain", "searched for secrets"])
def test_a_pipe_that_a_job_leaves_blocks_no_judging(run: RunDir, name: str, secrets: list[str]) -> None:
    path = Path(run.path, name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    safe_output.add_secrets(secrets)
    assert judging.judge_run(run).exit_code == 0


def test_an_environment_that_is_none_is_not_known(run: RunDir) -> None:
    write_json(run.environment, {"driver": 3})
    assert judging.judge_run(run).environment.driver is None


def test_what_the_adapter_saw_replaces_what_the_plan_foresaw(run: RunDir) -> None:
    write_json(run.docker, {"calls": [{**CALL, "deviations": [SEEN]}, {**CALL, "deviations": [SEEN]}]})
    assert [deviation.what for deviation in judging.judge_run(run).deviations] == ["other", "pull"]


CUTS = [
    ({"exit_code": 143, "left": ["containers may be left: no daemon"]}, "", "blocked"),
    ({"exit_code": 143}, "", "failed"),
    ({"end": "timeout", "exit_code": 143}, "pull", "blocked"),
    ({"end": "timeout", "exit_code": 143}, "container", "failed"),
]


@pytest.mark.parametrize(("status", "event", "judged"), CUTS)
def test_an_end_that_is_dockers_says_nothing_of_the_code(run: RunDir, status: Any, event: str, judged: str) -> None:
    write_json(run.status, {**STATUS, **status})
    Path(run.events).write_text("".join(f'{{"t": 1, "event": "{each}", "image": "a"}}\n' for each in ("pull", event)))
    assert judging.judge_run(run).status == judged


def test_docker_can_only_block_a_run_that_called_it(run: RunDir) -> None:
    Path(run.log).write_text("docker: Error response from daemon: denied\n")
    write_json(run.status, {**STATUS, "exit_code": 125})
    assert judging.judge_run(run).status == "failed"
    write_json(run.docker, {"calls": [CALL]})
    assert judging.judge_run(run).status == "blocked"


def test_junit_counts_and_half_of_one_does_not(run: RunDir) -> None:
    whole = '<testsuite><testcase name="a"><failure message="boom"/></testcase></testsuite>'
    Path(run.junit).write_text(whole)
    assert judging.judge_run(run).reason == "exit code 0, but a: boom"
    Path(run.junit).write_text(whole[:-9])
    assert judging.judge_run(run).evidence.kind == "metrics"


STATES: list[tuple[str, dict[str, Any] | None, str]] = [
    ("not started", None, "planned"),
    ("running", {"state": "running", "started_at": 1.0, **processes.identity()._asdict()}, "running"),
    ("runner gone", {"state": "running", "started_at": 1.0, "pid": os.getpid(), "pid_start": "0"}, "lost"),
    ("ended", STATUS, "passed"),
]


@pytest.mark.parametrize(("status", "expected"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_a_run_without_a_record_is_what_its_directory_says(
    run: RunDir, status: dict[str, Any] | None, expected: str
) -> None:
    os.unlink(run.status)
    if status is not None:
        write_json(run.status, status)
    assert load_record(run).status == expected
    assert os.path.exists(run.record) == (expected in ("lost", "passed"))


def test_a_run_that_could_not_begin_says_so(run: RunDir) -> None:
    shutil.rmtree(run.path)  # a job on this machine may take it away
    judged = record_not_started(run, "blocked", "no GPU")
    assert (judged.status, judged.reason, judged.exit_code) == ("blocked", "no GPU", None)
    assert load_record(run) == judged


@pytest.mark.parametrize("masked", [False, True])
def test_what_a_dead_agent_left_unmasked_is_masked_before_it_is_read(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    """Here, since the values are known here; it is done once."""
    monkeypatch.setenv("PLAIN_NAME", "correct-horse")
    write_json(run.plan, {**PLAN, "secrets": ["PLAIN_NAME"]})
    write_json(run.status, {**STATUS, "masked": masked})
    failure = "<failure message='assert correct-horse'/>"
    Path(run.junit).write_text(f"<testsuite><testcase name='a correct-horse'>{failure}</testcase></testsuite>")
    judging.judge_run(run)
    assert "correct-horse" not in Path(run.record).read_text()
    assert ("correct-horse" in Path(run.junit).read_text()) is masked


def test_a_run_of_another_host_is_over_when_all_of_it_is_here(run: RunDir) -> None:
    """The status comes before the rest: an end that is known does not mean that the log is whole."""
    write_json(run.remote, {"host": "box", "complete": False})
    assert load_record(run).status == "running"
    assert not os.path.exists(run.record)
    write_json(run.remote, {"host": "box", "complete": True})
    assert load_record(run).status == "passed"


# -- how long it waited, by the events that its runner and its script wrote --------------------------------------------


WAITS: dict[str, tuple[list[str], float | None]] = {
    "nothing in the way": (["1 started", "2 step", "5 gpus", "9 ended"], 0.0),
    "for GPUs, before the job": (["1 started", "2 waiting", "7 gpus", "7 step", "9 ended"], 5.0),
    "in the lock script": (["1 started", "2 step", "3 waiting", "7 gpus", "9 ended"], 4.0),
    "the same wait, said again": (["1 started", "2 step", "3 waiting", "5 waiting", "7 gpus", "9 ended"], 4.0),
    "for Ray's turn and then for GPUs": (["1 started", "1 waiting", "3 step", "5 waiting", "9 gpus", "9 ended"], 6.0),
    "cancelled meanwhile": (["1 started", "2 waiting", "8 cancelled", "9 ended"], 6.0),
    "the runner vanished": (["1 started", "2 waiting"], None),
    "never begun": ([], None),
    "a clock that was set back": (["9 started", "8 waiting", "2 gpus"], 0.0),
}


@pytest.mark.parametrize(("events", "seconds"), WAITS.values(), ids=WAITS)
def test_the_wait_is_what_lies_between_being_on_record_and_having_all(events: list[str], seconds: float | None) -> None:
    lines = ['{"t": %s, "event": "%s"}' % tuple(event.split()) for event in events]  # noqa: UP031
    assert queue_seconds(read_events("\n".join(lines))) == seconds


@pytest.mark.parametrize("line", ["", "{", "[]", "\ufffd", '{"t": "x"}', '{"t": NaN, "event": "gpus"}', "[" * 9999])
def test_lines_that_are_no_events_do_not_count(line: str) -> None:
    lines = ['{"t": 1, "event": "started"}', '{"t": 1, "event": "waiting"}', line, '{"t": 3, "event": "gpus"}']
    assert queue_seconds(read_events("\n".join(lines))) == 2.0


@pytest.mark.parametrize(("file", "missing"), [("libs/x/README", ""), ("libs/xy/README", "libs/x")])
def test_a_submodule_is_missing_if_the_checkout_has_nothing_of_it(tmp_path: Path, file: str, missing: str) -> None:
    (tmp_path / ".gitmodules").write_text('[submodule "x"]\n\tpath = libs/x\n[submodule "other"]\n\tpath = other\n')
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    checkout, reason = Checkout(path=str(tmp_path)), "cat: libs/x/VERSION: No such file or directory"
    record = RunRecord("b.01", "ppo", "r", "local", "failed", reason, checkout=checkout)
    assert judging._empty_submodule(record) == missing
