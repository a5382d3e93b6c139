"""The files of a run directory: what the agent writes is read back, and what others wrote is an error with a name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.files import replace_file
from ci_tasks.agent.records import (
    Checkout,
    Deviation,
    Event,
    GpuRequest,
    Kept,
    Plan,
    SlurmAllocation,
    Status,
    read_events,
)
from ci_tasks.agent.run_directory import LARGEST, RunDir, RunLog, read_plan, read_remote, read_status, write_record

PLAN = Plan(
    id="b.01",
    row="r",
    env={"A": "1"},
    secrets=("TOKEN",),
    deviations=(Deviation("code", "a", "b", "c"),),
    container=ContainerRules(mounts={"/mnt/x": "/data"}),
    checkout=Checkout("/w/\udcff", "1" * 40, "2" * 40, ("a.py",)),
    gpu_locks=GpuRequest(4, simulated=8),
)
STATUS = Status(
    "ended", "ended", 7, started_at=1.5, gpu_ids=(0, 1), kept=Kept(("c",), "/w"), slurm=SlurmAllocation("7", "n", 1)
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path))


def test_a_plan_and_a_status_come_back_as_they_were_written(run: RunDir) -> None:
    write_record(run.plan, PLAN)
    write_record(run.status, STATUS)
    assert (read_plan(run), read_status(run)) == (PLAN, STATUS)


def test_a_run_without_files_is_planned_and_on_this_machine(run: RunDir) -> None:
    assert (read_plan(run), read_status(run), read_remote(run)) == (Plan(), Status(), None)
    assert not Status().exists


def test_a_status_that_is_none_is_an_error_that_names_file_and_key(run: RunDir) -> None:
    Path(run.status).write_text('{"gpu_ids": [0, "1"]}')
    with pytest.raises(RecordError) as caught:
        read_status(run)
    assert str(caught.value) == f"{run.status}: gpu_ids[1]: expected int, got str"


def test_a_record_of_any_size_is_not_read(run: RunDir) -> None:
    with open(run.status, "wb") as out:
        out.truncate(LARGEST + 1)
    with pytest.raises(RecordError, match="larger than 16 MiB"):
        read_status(run)


def test_an_event_is_one_line_whatever_its_names_hold() -> None:
    event = Event(1.0, "step", name="a\nb\u2028c\x85d\udcff")
    assert event.line().count("\n") == 1 and event.line().isascii()
    assert read_events(event.line() + '{"t": 1e99, "event": "step"}\n{"t"\n' + event.line()) == [event, event]


def test_every_path_lies_in_the_run_directory(tmp_path: Path) -> None:
    paths = vars(RunDir(str(tmp_path)))
    assert len(set(paths.values())) == len(paths)
    assert all(value == str(tmp_path) or value.startswith(f"{tmp_path}/") for value in paths.values())


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "no bytes")  # type: ignore[arg-type]
    assert Path(path).read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.json"]


# -- the log ---


def test_count_and_digest_are_those_of_the_file(tmp_path: Path) -> None:
    """Of the masked bytes: that is what anybody can check."""
    log = RunLog(str(tmp_path / "log"), ["hunter22"])
    for chunk in (b"a hun", b"ter22 b\n", b"", b"hun"):
        log.write(chunk)
    log.close()
    data = (tmp_path / "log").read_bytes()
    assert data == b"a *** b\nhun"
    assert (log.bytes, log.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert log.error is None


def test_an_error_is_kept_and_ends_the_writing_only(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "log")
    log = RunLog(str(tmp_path / "log"), [])
    log.write(b"one")
    log.write(b"two")
    log.close()
    assert log.error == "the log could not be written: No space left on device"
    assert (log.bytes, log.sha256) == (0, hashlib.sha256(b"").hexdigest())
