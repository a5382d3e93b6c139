"""How a run stands for somebody who comes back to it."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.records import Plan, State, Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.agent.slurm import CancelError
from ci_tasks.config import read
from ci_tasks.errors import Blocked
from ci_tasks.hosts.runs import RemoteRun, RunMirror, RunState
from ci_tasks.results import store
from ci_tasks.results.runs import record_not_started
from ci_tasks.results.store import BatchState
from ci_tasks.run import attach
from ci_tasks.run.attach import AttachedRun
from ci_tasks.run.events import open_events


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    directory = RunDir(str(tmp_path))
    write_record(directory.plan, Plan(id="b.01", label="l", row="ckpt", host="box"))
    return directory


def attached(run: RunDir, state: RunState, monkeypatch: pytest.MonkeyPatch) -> AttachedRun:
    monkeypatch.setattr(AttachedRun, "poll", lambda _: state)
    return AttachedRun("b.01", run)


@pytest.mark.parametrize(
    ("status", "state", "shown"),
    [
        (None, RunState(note="sending"), ("waiting", "sending")),
        (Status("running", phase="running", started_at=0.0), RunState(), ("running", "")),
        (Status("running", phase="waiting", started_at=0.0, waiting=("GPU 3",)), RunState(), ("waiting", "GPU 3")),
        (None, RunState(aborted=("lost", "it never began")), ("lost", "")),
    ],
    ids=["not started", "running", "waiting for GPUs", "given up"],
)
def test_a_run_is_shown_as_it_stands(
    run: RunDir, status: Status | None, state: RunState, shown: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if status is not None:
        write_record(run.status, status)
    progress = attached(run, state, monkeypatch).progress()
    assert (progress.row, progress.host, progress.state, progress.note) == ("ckpt", "box", *shown)
    assert (progress.seconds is None) == (status is None), "only what has started takes time"


@pytest.mark.parametrize(("state", "goes_on"), [("running", True), ("ended", False)])
def test_a_run_whose_end_is_just_being_written_does_not_go_on(run: RunDir, state: State, goes_on: bool) -> None:
    mirror = RunMirror(run)
    mirror.status, mirror.has_status = Status(state), True  # as between an update and its end
    attached = AttachedRun("b.01", run, remote_run=RemoteRun(run, "/there", mirror=mirror))
    assert attached.is_caught_up() == goes_on
    mirror.close()


def test_a_command_that_does_not_end_is_not_called_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    monkeypatch.setattr(attach, "_COMMAND_SECONDS", 0.0)
    batch = store.new_batch("label")
    with subprocess.Popen(["sleep", "60"], preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)) as process:
        start, boot = processes.start_time(process.pid), processes.boot_id()
        state = BatchState("preparing", process.pid, start, boot, platform.node(), 0.0)
        write_record(str(batch.path / "state.json"), state)
        try:
            with pytest.raises(Blocked, match=f"process {process.pid}, does not end"):
                attach.cancel(batch.id, read(""), None)
        finally:
            process.kill()
    assert attach.cancel(batch.id, read(""), None) == []


def test_the_command_of_another_user_is_named_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    batch = store.new_batch("label")
    state = BatchState("preparing", 1, processes.start_time(1), processes.boot_id(), platform.node(), 0.0)
    write_record(str(batch.path / "state.json"), state)
    monkeypatch.setattr("os.kill", mock.Mock(side_effect=PermissionError))
    with pytest.raises(Blocked, match="process 1, is another user's"), mock.patch("builtins.print") as printed:
        attach.cancel(batch.id, read(""), None)
    printed.assert_called_once_with(f"ending the command of {batch.id}, process 1", flush=True)


def test_a_run_of_this_machine_is_cancelled_here(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci_tasks.agent.slurm.cancel", cancelled := mock.Mock(side_effect=CancelError))
    AttachedRun("b.01", run).cancel()
    cancelled.assert_called_once_with(run.path)


def test_events_of_attach_name_the_host_and_end_with_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one row, as `--repeat` and `compare` make them, are told apart by their ids."""
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    for number in ("01", "02"):
        run = RunDir(str(tmp_path / "runs/20260101-120000-l" / number))
        Path(run.path).mkdir(parents=True)
        write_record(run.plan, Plan(id=f"20260101-120000-l.{number}", label="l", row="ckpt", host="box"))
        record_not_started(run, "blocked", "no GPU")
    with open_events(str(tmp_path / "events")) as events:
        result = attach.attach("20260101-120000-l", read("hosts: {}\n"), None, events)
    lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    told = [(line["event"], line.get("row"), line.get("host"), line.get("status")) for line in lines]
    rows = [("row_ended", f"ckpt (20260101-120000-l.{number})", "box", "blocked") for number in ("01", "02")]
    assert told == [*rows, ("run_ended", None, None, "blocked"), ("command_ended", None, None, None)]
    assert lines[2]["exit_code"] == result.exit_code == 125
