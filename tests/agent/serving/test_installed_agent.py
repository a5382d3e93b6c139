"""Agents as a host starts them, with real processes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive
from ci_tasks.agent import launcher as launcher_module
from ci_tasks.agent.serving.installed_agent import InstalledAgent
from tests.agent.conftest import Run

Until = Callable[..., Any]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[InstalledAgent]:
    """Brought to this host by a client."""
    path, code = tmp_path / "agent.pyz", tmp_path / "code"
    path.write_bytes(archive.build())
    zipfile.ZipFile(io.BytesIO(path.read_bytes())).extractall(code)
    agent = InstalledAgent(str(path), str(code))
    yield agent
    if agent._launcher is not None:
        agent._launcher.close()


@pytest.fixture
def launcher(agent: InstalledAgent) -> int:
    """The process that becomes agents."""
    agent.prepare()
    assert agent._launcher is not None
    return agent._launcher.pid


def _written(run: Run, script: str) -> Run:
    run.write(script, secrets=["TOKEN"])
    return run


def test_each_run_has_an_agent_and_secrets_of_its_own(agent: InstalledAgent, new_run: Callable[..., Run]) -> None:
    script = 'echo "${TOKEN:-none}" > "$CI_TASKS_RUN_DIR/token"; echo "$TOKEN"'
    runs = [_written(new_run(name), script) for name in ("first", "second", "third")]
    tokens = ["the-first-token", "the-second-token", ""]
    for run, token in zip(runs, tokens, strict=True):
        assert agent.start(run.paths, {"TOKEN": token} if token else {}) == ""
    assert [run.ended().exit_code for run in runs] == [0, 0, 0]
    assert [(run.path / "token").read_text() for run in runs] == [f"{token or 'none'}\n" for token in tokens]
    assert [run.log() for run in runs] == [b"***\n", b"***\n", b"\n"]
    assert len({run.status().pid for run in runs}) == 3


def test_no_secret_stands_where_other_processes_look(
    agent: InstalledAgent, launcher: int, run: Run, until: Until
) -> None:
    _written(run, 'until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done')
    assert agent.start(run.paths, {"TOKEN": "a-token-of-the-run"}) == ""
    for pid in (launcher, until(lambda: run.status().pid)):
        for name in ("cmdline", "environ"):
            assert b"a-token-of-the-run" not in Path(f"/proc/{pid}/{name}").read_bytes()
    (run.path / "go").touch()
    run.ended()


def test_a_run_outlives_what_started_it(agent: InstalledAgent, launcher: int, run: Run, until: Until) -> None:
    _written(run, 'until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done; echo survived')
    assert agent.start(run.paths, {}) == ""
    parent = int(Path(f"/proc/{run.status().pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent not in (launcher, os.getpid())
    os.killpg(launcher, signal.SIGKILL)
    (run.path / "go").touch()
    assert run.ended().exit_code == 0
    assert run.log() == b"survived\n"


def test_what_starts_agents_ends_with_its_connection(agent: InstalledAgent, until: Until) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from agent.serving.installed_agent import InstalledAgent\n"
        "agent = InstalledAgent(*sys.argv[1:]); agent.prepare(); print(agent._launcher.pid)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code, agent.path, agent.code])
    until(lambda: not Path(f"/proc/{int(printed)}").exists())


def test_a_run_that_cannot_begin_says_why_and_the_next_one_begins(
    agent: InstalledAgent, new_run: Callable[..., Run]
) -> None:
    broken, run = new_run("broken"), new_run("whole")
    _written(run, "echo begun")
    assert agent.start(broken.paths, {}) == f"{broken.paths.plan}: missing"
    assert agent.start(run.paths, {}) == ""
    assert run.ended().exit_code == 0
    assert "has run before" in agent.start(run.paths, {})


def test_a_run_begins_without_the_process_that_starts_agents(agent: InstalledAgent, launcher: int, run: Run) -> None:
    os.kill(launcher, signal.SIGKILL)
    os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOWAIT)
    _written(run, "echo begun")
    assert agent.start(run.paths, {"TOKEN": "a-token-of-the-run"}) == ""
    assert run.ended().exit_code == 0


def test_a_run_begins_where_nothing_could_be_prepared(
    agent: InstalledAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as lacking:
        lacking.setattr(sys, "executable", "/nowhere/python3")
        agent.prepare()
    assert agent._launcher is None
    _written(run, "echo begun")
    assert agent.start(run.paths, {}) == ""
    assert run.ended().exit_code == 0


def test_a_run_that_may_have_begun_is_not_begun_twice(agent: InstalledAgent, launcher: int, run: Run) -> None:
    os.kill(launcher, signal.SIGSTOP)
    _written(run, "echo begun")
    problems: list[str] = []
    starting = threading.Thread(target=lambda: problems.append(agent.start(run.paths, {})))
    starting.start()
    starting.join(0.2)
    os.kill(launcher, signal.SIGKILL)
    starting.join()
    assert problems == ["the process that starts agents has died"]
    assert not run.has("status.json")


def test_what_starts_agents_is_not_waited_for_without_end(
    agent: InstalledAgent, launcher: int, new_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "ANSWER_SECONDS", 0.1)
    os.kill(launcher, signal.SIGSTOP)
    first, second = (_written(new_run(name), "echo begun") for name in ("first", "second"))
    assert agent.start(first.paths, {}) == "the process that starts agents has not answered for 0.1 s"
    os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOWAIT)
    assert agent.start(second.paths, {}) == ""
    assert second.ended().exit_code == 0
    assert not first.has("status.json")


def test_a_run_begins_with_its_own_agent_where_the_installed_one_was_removed(
    agent: InstalledAgent, launcher: int, run: Run
) -> None:
    os.rename(agent.code, f"{agent.code}-removed")  # at once: the launcher may be writing byte code there
    os.unlink(agent.path)
    _written(run, "echo begun")
    Path(run.paths.agent).write_bytes(agent.archive())
    assert agent.start(run.paths, {}) == ""
    assert run.ended().exit_code == 0


def test_the_archive_for_a_run_has_byte_code(agent: InstalledAgent) -> None:
    assert agent.archive() == archive.with_bytecode(archive.build())
