"""Run directories written and started on this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.containers.docker_argv import ContainerRules
from ci_tasks.agent.records import Checkout, Plan
from ci_tasks.agent.run_directory import RunDir, read_status
from ci_tasks.errors import Blocked
from ci_tasks.hosts import local_runs


def plan(script: str) -> Plan:
    return Plan(
        id="id-1",
        label="l",
        job="j",
        row="r",
        host="local",
        test=None,
        args="",
        gpus=0,
        image=None,
        runtime="none",
        env={},
        secrets=("TOKEN",),
        workspace="/w",
        timeout_minutes=1,
        stall_minutes=1,
        deviations=(),
        container=ContainerRules("none"),
        checkout=Checkout("/checkout", "c" * 40, "t" * 40),
        script=script,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path / "sp ace 'quo\"te" / "run"))


def wait(run: RunDir) -> None:
    for _ in range(400):
        if local_runs.has_ended(run):
            return
        time.sleep(0.02)
    raise AssertionError("the run did not end")


def test_a_run_directory_has_all_that_a_run_needs(run: RunDir) -> None:
    local_runs.write_run_dir(run, plan("#!/bin/sh\necho '\udcff' ü\r\n"))
    assert sorted(os.listdir(run.path)) == ["artifacts", "bin", "plan.json", "run.sh"]
    assert sorted(os.listdir(run.bin)) == ["agent.pyz", "docker"]
    assert Path(run.script).read_bytes() == b"#!/bin/sh\necho '\xff' \xc3\xbc\r\n"
    assert os.access(run.script, os.X_OK) and os.access(run.adapter, os.X_OK)
    written = json.loads(Path(run.plan).read_text())
    assert written["id"] == "id-1" and "script" not in written


def test_a_run_ends_with_its_exit_code_and_its_secrets_come_from_the_caller(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "value")
    local_runs.write_run_dir(run, plan('#!/bin/sh\n[ "$TOKEN" = value ] && echo got it; exit 3\n'))
    assert not read_status(run).exists
    local_runs.start(run)
    wait(run)
    assert read_status(run).exit_code == 3
    assert "got it" in Path(run.log).read_text()


def test_an_interrupt_while_a_run_is_waited_for_ends_it(run: RunDir) -> None:
    """Wherever it hits: the job itself interrupts us, when it has begun."""
    local_runs.write_run_dir(run, plan(f"#!/bin/sh\nkill -USR1 {os.getpid()}; exec sleep 60\n"))
    ours = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            local_runs.complete(run)
    finally:
        signal.signal(signal.SIGUSR1, ours)
    assert read_status(run).end == "cancelled"
    assert not processes.of_run(run.path, None)


def test_an_interrupt_while_a_run_is_started_ends_it_too(run: RunDir) -> None:
    local_runs.write_run_dir(run, replace(plan("#!/bin/sh\nexec sleep 60\n"), client_seconds=0.0))
    real = run.agent + ".real"
    os.rename(run.agent, real)
    Path(run.agent).write_text(
        "import os, signal, sys\n"
        'if sys.argv[1] == "start": os.kill(os.getppid(), signal.SIGUSR1)\n'
        f'os.execv(sys.executable, [sys.executable, "-I", {real!r}, *sys.argv[1:]])\n'
    )
    ours = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            local_runs.complete(run)
    finally:
        signal.signal(signal.SIGUSR1, ours)
    wait(run)
    assert not processes.of_run(run.path, None)


def test_an_agent_that_cannot_start_is_blocked_with_its_last_words(run: RunDir) -> None:
    local_runs.write_run_dir(run, plan("#!/bin/sh\n"))
    Path(run.agent).write_text("import sys; sys.exit('first\\nno agent here')\n")
    with pytest.raises(Blocked, match="the agent did not start: no agent here"):
        local_runs.start(run)
    Path(run.agent).write_text("raise SystemExit(1)\n")
    with pytest.raises(Blocked, match="it said nothing"):
        local_runs.start(run)
