"""A job that writes into its own run directory: how it ended stays true, and what it changed is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import codec, processes, serve
from ci_tasks.agent.protocol import Request
from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import RunDir, read_status_if_readable
from ci_tasks.agent.serve import Session
from ci_tasks.results.judge_run import judge_run
from ci_tasks.results.load import load_record

if TYPE_CHECKING:
    from tests.agent.conftest import Run

Until = Callable[..., Any]


def has_ended(run: Run) -> bool:
    return not processes.is_alive(run.paths, read_status_if_readable(run.paths))


PASSED = codec.to_json(Status("ended", sequence=10**6, end="exit", exit_code=0, pid=1, pid_start="1", group=1))
# what the job does in its run directory → the file that is named
FORGERIES = {
    "a status": (f"echo '{PASSED}' > status.json", "status.json"),
    "garbage for a status": ("echo garbage > status.json", "status.json"),
    "a directory for a status": ("rm -f status.json; mkdir -p status.json/x", "status.json"),
    "a plan": ('echo "{}" > plan.json', "plan.json"),
    "garbage for a plan": ("rm plan.json; mkfifo plan.json", "plan.json"),
    "directories for a plan and a record": ("rm plan.json; mkdir -p plan.json/x record.json", "plan.json"),
    "a script": ("echo 'exit 0' > new; mv new run.sh", "run.sh"),
    "an agent": ("echo 'exit' > bin/agent.pyz", "bin/agent.pyz"),
    "a shorter log": (": > log", "log"),
}


@pytest.mark.parametrize(("forge", "name"), FORGERIES.values(), ids=FORGERIES)
def test_a_job_does_not_change_how_its_run_ended(run: Run, until: Until, forge: str, name: str) -> None:
    run.start(
        'cd "$CI_TASKS_RUN_DIR"; echo begun; until [ -e go ]; do sleep 0.01; done\n'
        f'echo \'{{"t": 2.5, "event": "step", "name": "a"}}\' >> events.jsonl; {forge}; exit 4'
    )
    until(lambda: run.log() == b"begun\n" and run.events("started"))
    (run.path / "go").touch()
    until(lambda: not processes.has_agent(str(run.path)))
    status = run.status()
    assert (status.state, status.end, status.exit_code, status.changed) == ("ended", "exit", 4, (name,))
    record = judge_run(run.paths)
    assert (record.status, record.exit_code) == ("failed", 4)
    (deviation,) = (item for item in record.deviations if item.what == "files of the run")
    assert deviation.here == f"changed: {name}"


def followed(run_dir: Path, sent: list[bytes]) -> serve.RunFollower:
    server: Any = SimpleNamespace(send=sent.append, session=Session(str(run_dir), b"", "", 0))
    return serve.RunFollower(server, 1, Request("follow", str(run_dir)))


def test_a_forged_end_is_not_believed_while_the_agent_lives(run: Run, until: Until) -> None:
    """The agent is held still, so that it cannot write its status meanwhile."""
    run.start(
        'cd "$CI_TASKS_RUN_DIR"; touch ready; until [ -e go ]; do sleep 0.01; done\n'
        f"echo '{PASSED}' > new; mv new status.json; touch forged; until [ -e end ]; do sleep 0.01; done; exit 4"
    )
    until(lambda: run.has("ready"))  # the agent has started the job by now
    agent = run.status().pid or 0
    os.kill(agent, signal.SIGSTOP)
    (run.path / "go").touch()
    until(lambda: run.has("forged"))
    assert run.status().has_ended
    sent = list[bytes]()
    watched = followed(run.path, sent)
    watched.poll()
    assert not sent and not watched.is_over
    assert not has_ended(run)
    assert load_record(run.paths).status == "running"
    os.kill(agent, signal.SIGCONT)
    (run.path / "end").touch()
    until(lambda: has_ended(run))
    watched.poll()
    assert watched.is_over and b'"exit_code":4' in bytes(sent[-1])


def test_what_a_link_in_the_place_of_a_run_directory_leads_to_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("its own")
    (tmp_path / "link").symlink_to(tmp_path)
    sent = list[bytes]()
    watched = followed(tmp_path / "link", sent)
    watched.poll()
    assert watched.is_over and b"missing" in bytes(sent[-1])
    processes.conclude(RunDir(str(tmp_path / "link")))
    assert (tmp_path / "status.json").read_text() == "its own"


# -- an agent that is killed -----------------------------------------------------------------------------------------


def test_the_next_one_who_asks_corrects_the_status_of_a_killed_agent(run: Run, until: Until) -> None:
    run.start('setsid sleep 300 & trap "" TERM; touch "$CI_TASKS_RUN_DIR/ready"; while :; do sleep 300; done')
    until(lambda: run.has("ready") and run.status().group)
    last = run.status()
    os.kill(last.pid or 0, signal.SIGKILL)
    until(lambda: has_ended(run))
    record = load_record(run.paths)
    assert record.status == "lost"
    assert record.reason.startswith("the agent died before the job ended (last heartbeat 20")
    assert record.ended_at is not None
    status = run.status()
    assert (status.state, status.end, status.gone, status.ended_at) == ("ended", None, True, last.heartbeat_at)
    assert "were not searched for" in status.left[0]
    run.cancel()
    assert not run.alive()
    assert "processes were ended" in (run.status().error or "")
    assert run.status().left == ()


def test_a_run_from_before_a_restart_is_lost_and_says_so(run: Run) -> None:
    run.write("exit 0")
    status = {"state": "running", "pid": os.getpid(), "boot_id": "an earlier boot", "heartbeat_at": 1.7e9}
    Path(run.paths.status).write_text(json.dumps(status))
    reason = "the host restarted before the job ended (last heartbeat 2023-11-14 22:13:20 UTC)"
    assert (load_record(run.paths).status, load_record(run.paths).reason) == ("lost", reason)
