"""A run's containers are found by its directory's label, stopped and removed. Docker is a stand-in that keeps some."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import containers, processes
from ci_tasks.agent.docker_argv import ENGINES
from ci_tasks.agent.records import QueryAnswer

if TYPE_CHECKING:
    from tests.agent.conftest import Run
    from tests.agent.fake_docker import Fake


def _entry(name: str | None, runtime: str = "docker") -> dict[str, Any]:
    return {"ci": [], "here": [], "deviations": [], "name": name, "runtime": runtime}


def _started(run: Run, *entries: Any) -> None:
    Path(run.paths.docker).write_text(json.dumps({"calls": entries}))


def _rules(run: Run) -> None:
    run.write("", container={"runtime": "docker"})


def _remove(run: Run, thorough: bool = False) -> list[str]:
    return containers.RunContainers(str(run.path), thorough).remove()


def _own(run: Run) -> dict[str, str]:
    return {"ci-tasks_dir": str(run.path)}


@pytest.mark.parametrize("runtime", ENGINES)
@pytest.mark.parametrize("entries", [[_entry("theirs")], ["a", 3, None], None], ids=["theirs", "broken", "none"])
def test_the_label_says_what_is_removed_whatever_a_job_writes_into_its_records(
    run: Run, fake: Fake, entries: Any, runtime: str
) -> None:
    for name in ("a", "a-2"):
        fake.has(name, runtime, **_own(run))
    fake.has("theirs", runtime, **{"ci-tasks_dir": "/theirs"})
    run.write("", container={"runtime": runtime, "labels": {"ci-tasks.dir": "/theirs"}})
    if entries is not None:
        _started(run, *entries)
    assert _remove(run, thorough=entries is None) == []
    assert fake.left(runtime) == ["theirs"]


def test_containers_are_numbered_in_the_order_of_their_creation_and_none_is_asked_for_before_one_starts(
    run: Run, fake: Fake
) -> None:
    for at, name in enumerate(("z", "a-2", "a")):
        fake.has(name, **_own(run))
        os.utime(fake.home / "docker" / name, (at, at))
    _rules(run)
    assert (_remove(run), fake.calls()) == ([], [])
    _started(run, _entry("z"))
    found = containers.RunContainers(str(run.path)).find()
    assert [(container.name, container.number) for container in found] == [("z", 1), ("a-2", 2), ("a", 3)]


def test_the_daemon_is_the_one_that_the_job_used(run: Run, fake: Fake) -> None:
    fake.has("a", **_own(run))
    run.write("", container={"runtime": "docker"}, host_env={"DOCKER_HOST": "unix:///other"})
    _started(run, _entry("a"))
    _remove(run)
    assert fake.calls("inspect") == ["docker inspect --type container -- id-a [unix:///other]"]


@pytest.mark.parametrize(
    ("state", "seconds", "left"),
    [("sticky", 0.0, ["container a: Error response from daemon: device or resource busy"]), ("removing", 60.0, [])],
)
def test_a_removal_in_progress_is_waited_for_and_what_is_left_is_said_with_its_reason(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, state: str, seconds: float, left: list[str]
) -> None:
    monkeypatch.setattr(containers, "REMOVE_SECONDS", seconds)
    fake.has("a", **_own(run))
    fake.be(state)
    _rules(run)
    _started(run, _entry("a"))
    assert (_remove(run), bool(fake.left())) == (left, bool(left))


def test_a_daemon_that_hangs_is_waited_for_once_and_then_for_a_short_time(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def hang(argv: Any, seconds: float, environ: Any) -> QueryAnswer:
        asked.append(seconds)
        return QueryAnswer(None, err="no answer from docker within 30 s")

    monkeypatch.setattr(containers, "run_program", hang)
    _rules(run)
    _started(run, _entry("a"))
    found = containers.RunContainers(str(run.path))
    (problem,) = found.remove()
    assert problem.startswith("containers may be left: ")
    found.stop()
    assert asked == [containers.TIMEOUT, containers.SHORT_TIMEOUT]


def test_what_client_that_hangs_has_started_is_killed_with_it(run: Run, fake: Fake, until: Callable[..., Any]) -> None:
    """As the ssh of DOCKER_HOST=ssh://…, which has the client's standard output."""
    program = fake.home / "bin" / "docker"
    program.write_text(f"#!/bin/sh\nsleep 300 & echo $! > {shlex.quote(str(run.path))}/child\nwait\n")
    client = containers.DockerClient("docker", dict(os.environ))
    assert client.run("ps", timeout=1.0).timed_out
    until(lambda: processes.start_time(run.pid("child")) is None)


def test_a_run_stops_its_containers_before_it_removes_them(run: Run, fake: Fake, until: Callable[..., Any]) -> None:
    """After their clients are gone, since a client could still start one."""
    fake.has("a", **_own(run))
    run.plan["container"] = {"runtime": "docker"}
    script = f"""\
echo '{json.dumps({"calls": [_entry("a")]})}' > "$CI_TASKS_RUN_DIR/docker.json"
touch "$CI_TASKS_RUN_DIR/ready"
sleep 300"""
    run.start(script, PATH=os.environ["PATH"])
    until(lambda: run.has("ready"))
    run.cancel()
    assert run.ended().left == ()
    subcommands = [call.split()[1] for call in fake.calls()]
    assert subcommands.index("stop") < subcommands.index("rm")
    assert fake.left() == []
