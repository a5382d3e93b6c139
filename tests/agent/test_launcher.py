"""The process that becomes agents, and whoever asks it for them; more of it in serving/test_installed_agent.py."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci_tasks.agent import archive
from ci_tasks.agent.launcher import AgentLauncher
from tests.agent.conftest import Run


@pytest.fixture
def started(tmp_path: Path) -> Iterator[AgentLauncher]:
    code = tmp_path / "loaded.pyz"
    code.write_bytes(archive.build())
    process = AgentLauncher(str(code))
    yield process
    process.close()


def test_an_answer_that_was_interrupted_can_be_asked_for_again(
    started: AgentLauncher, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run.write("echo begun")
    assert started.request(run.paths, {})
    with monkeypatch.context() as pressed:
        pressed.setattr(select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            started.answer()
    assert (started.answer(), started.answer()) == ("", "")
    assert run.ended().exit_code == 0


def test_agents_go_on_when_it_is_closed(started: AgentLauncher, run: Run) -> None:
    run.write('until [ -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done; echo survived')
    assert started.request(run.paths, {})
    assert started.answer() == ""
    started.close()
    assert not os.path.exists(f"/proc/{started.pid}")
    (run.path / "go").touch()
    assert run.ended().exit_code == 0
    assert run.log() == b"survived\n"


def test_what_a_job_does_to_the_code_that_it_loaded_reaches_no_later_run(
    started: AgentLauncher, new_run: Callable[..., Run], tmp_path: Path
) -> None:
    """That code may lie in the directory of its first run."""
    first, second = new_run("first"), new_run("second")
    first.write(f"rm -r {tmp_path}/loaded.pyz; mkdir {tmp_path}/loaded.pyz")
    second.write("exit 3")
    codes = []
    for run in (first, second):
        assert started.request(run.paths, {})
        assert started.answer() == ""
        codes.append(run.ended().exit_code)
    assert codes == [0, 3]
    assert not second.has("agent.log")
