"""A Docker daemon that accepts and does not answer: it is named while it lasts, what it keeps is on record, and goes
when it answers again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks.agent.cleanup import remove_run
from ci_tasks.agent.containers import run_containers
from ci_tasks.results.judge_run import judge_run
from tests import fixtures as support
from tests.integration.container_box import Box
from tests.parts.dockerd import Daemon

# The agent's own timeouts, so that a test need not wait as long as a person would. None is so short that a daemon which
# answers slowly would change what a test sees.
QUICK = (
    ("HEARTBEAT_SECONDS = 2.0  # between two writes", "HEARTBEAT_SECONDS = 0.1  # between two writes"),
    ("QUERY_SECONDS = 15.0", "QUERY_SECONDS = 0.5"),
    ("TIMEOUT = 30.0  # seconds for an answer of the daemon", "TIMEOUT = 0.5"),
)


@pytest.fixture
def daemon(docker_daemon: Daemon) -> Iterator[Daemon]:
    """The worker's daemon; after the test it answers, whatever happened."""
    yield docker_daemon
    docker_daemon.resume()


@pytest.fixture
def box(tmp_path: Path, daemon: Daemon) -> Iterator[Box]:
    made = Box(tmp_path / "home", daemon)
    yield made
    daemon.resume()
    made.remove()


def test_a_container_that_a_silent_daemon_keeps_is_on_record_and_goes_when_it_answers(
    box: Box, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_containers, "TIMEOUT", 0.5)
    box.write("echo ready; sleep 600", after="exit 0")
    box.change_agent(*QUICK)
    box.start()
    support.until(lambda: "ready" in box.log(), "the job is under way")
    with daemon.hanging():
        box.call("cancel")
        status = box.ended()
        assert status.end == "cancelled"
        assert [line for line in status.left if line.startswith("containers may be left: no answer from docker")]
        assert "the artifacts in containers are not collected" in status.left
        assert judge_run(box.run).left == status.left
        assert remove_run(str(box.path))[-1].endswith("kept until its containers are gone")
    assert remove_run(str(box.path)) == []
    assert box.containers("--all") == []
