"""A client that is killed before its rows begin: nothing goes on without it, and every command knows how it stands.

The install steps stand for pip: they run until a file appears, and install nothing, so that a row which begins after
them ends as blocked. They run here, and on a host over a real sshd. See also `ci_tasks.run.interrupts`.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.results.store import read_state_if_readable
from tests.fixtures import ends, until
from tests.parts.processes import command_lines, files_named, with_variable

HOSTS = "hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true, workspace: WORKSPACE}}\n"
SHORT = "from ci_tasks.planning import planner; planner._CLIENT_SECONDS = 1.0"


class Place:
    """A person whose install steps run on `host`, in directories below `top`."""

    def __init__(self, person: Any, host: str, top: Path) -> None:
        self.person, self.host, self.top = person, host, top
        self.flag = person.home.parent / "installed"
        self.steps(f"echo begun; while [ ! -e {shlex.quote(str(self.flag))} ]; do sleep 0.05; done; true")

    def steps(self, text: str) -> None:
        self.person.edit(".github/workflows/pr-test.yml", "pip install pytest\n", f"{text}\n")
        self.person.edit(".github/workflows/pr-test.yml", "pip install -e . --no-deps\n", "true\n")

    def start(self) -> Any:
        """A client, as soon as its install steps run."""
        client = self.person.start("remote", "--host", self.host, "agent-test")
        until(lambda: (client.pid, "installing") in self.phases(), "it comes to the install steps")
        until(lambda: any("begun\n" in log.read_text() for log in files_named("log", self.top)), "install steps run")
        return client

    def phases(self) -> list[tuple[int, str]]:
        states = [read_state_if_readable(path.parent) for path in self.person.home.glob("runs/*/state.json")]
        return [(state.pid, state.phase) for state in states if state is not None]

    def start_and_kill(self) -> Any:
        client = self.start()
        client.kill()
        client.communicate()
        return client

    def statuses(self, *words: str) -> set[tuple[str, str]]:
        return {(run["status"], run["reason"]) for run in self.person.ci_tasks("runs", "--json", *words).json}

    def processes(self) -> list[str]:
        return command_lines(with_variable(f"CI_TASKS_RUN_DIR={self.top}/"))


@pytest.fixture
def here(person: Any) -> Iterator[Place]:
    place = Place(person, "local", person.home)
    yield place
    place.flag.touch()


@pytest.fixture
def there(person: Any, sshd: Any, tmp_path: Path) -> Iterator[Place]:
    sshd.start("box")
    workspace = tmp_path / "there"
    workspace.mkdir()
    file = tmp_path / "hosts.yaml"
    file.write_text(HOSTS.replace("WORKSPACE", str(workspace)))
    person.env.update(sshd.env, CI_TASKS_HOSTS=str(file))
    place = Place(person, "box", workspace)
    yield place
    place.flag.touch()


LOST = {("lost", "the client was killed during the install steps")}


@pytest.mark.parametrize(
    ("where", "number"), [("here", signal.SIGTERM), ("there", signal.SIGHUP)], ids=["here-SIGTERM", "there-SIGHUP"]
)
def test_a_signal_that_ends_a_client_cancels_as_ctrl_c_does(
    where: str, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(where)
    client = place.start()
    client.send_signal(number)
    ends(client, 130)
    assert place.statuses() == {("cancelled", "cancelled before it started")}
    assert not place.processes()


def test_a_killed_client_leaves_nothing_here_and_every_command_says_so(here: Place) -> None:
    here.start_and_kill()
    until(lambda: not here.processes(), "its install steps end")
    assert here.statuses() == LOST
    done = here.person.ci_tasks("attach", "last")
    assert (done.code, "the client was killed during the install steps" in " ".join(done.out.split())) == (125, True)
    done = here.person.ci_tasks("clean")
    assert (done.code, "removed, the client was killed during the install steps" in done.out) == (0, True), done
    assert not list((here.person.home / "runs").iterdir())
    assert here.statuses() == set()


def test_install_steps_on_a_host_go_on_while_their_client_waits_and_end_some_time_after_it(there: Place) -> None:
    there.person.first = SHORT
    client = there.start()
    (log,) = files_named("log", there.top)
    status = log.with_name("status.json")
    for _ in range(2):
        before = status.read_text()
        until(lambda: status.read_text() != before, "a heartbeat")  # noqa: B023
    assert there.processes() and client.poll() is None, "longer than they would without it"
    client.kill()
    client.communicate()
    until(lambda: not there.processes(), "its install steps end")
    assert there.statuses() == LOST


def test_cancel_ends_a_living_client_and_what_a_killed_one_left(there: Place) -> None:
    client = there.start()
    assert there.statuses() == {("installing", "")}
    done = there.person.ci_tasks("remote", "--host", "box", "agent-test", "--resume")
    assert (done.code, f"still runs: process {client.pid}" in done.err) == (2, True), done
    done = there.person.ci_tasks("cancel", "last")
    assert (done.code, "cancelled " in done.out) == (0, True), done
    ends(client, 130)
    assert there.statuses() == {("cancelled", "cancelled before it started")}
    assert not there.processes()
    there.start_and_kill()
    killed = max(path.name for path in (there.person.home / "runs").iterdir())
    assert there.person.ci_tasks("cancel", killed).code == 0
    until(lambda: not there.processes(), "its install steps end")
    assert there.statuses() > LOST


@pytest.fixture
def endless(here: Place) -> Callable[[], Any]:
    """A client whose row runs until the flag is there."""
    here.flag.touch()
    text = f"import os, time\nwhile os.path.exists({str(here.flag)!r}):\n    time.sleep(0.05)\nprint('over')\n"
    here.person.write("tests/test_tiny_ckpt.py", text)

    def start() -> Any:
        client = here.person.start("remote", "--host", "sim", "ckpt", "--only", "async")
        until(lambda: list(here.person.home.glob("runs/*/01/status.json")), "the row runs")
        return client

    return start


def test_a_terminal_that_is_closed_leaves_running_rows_to_themselves(here: Place, endless: Callable[[], Any]) -> None:
    client = endless()
    client.send_signal(signal.SIGHUP)
    ends(client, -signal.SIGHUP)
    assert {status for status, _ in here.statuses()} == {"running"}
    here.flag.unlink()
    assert "over" in here.person.ci_tasks("attach", "last").out
