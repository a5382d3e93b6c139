"""A run's containers are found by its directory's label, stopped and removed. Docker is a stand-in that keeps some."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.containers import run_containers

if TYPE_CHECKING:
    from tests.agent.conftest import Run
    from tests.agent.fake_docker import Fake


def _entry(name: str | None, runtime: str = "docker") -> dict[str, Any]:
    return {"ci": [], "here": [], "deviations": [], "name": name, "runtime": runtime}


def _started(run: Run, *entries: Any) -> None:
    Path(run.paths.docker).write_text(json.dumps({"calls": entries}))


def _rules(run: Run, **labels: str) -> None:
    run.write("", container={"runtime": "docker", "labels": {key.replace("_", "."): v for key, v in labels.items()}})


def _own(run: Run) -> dict[str, str]:
    return {"ci-tasks_dir": str(run.path)}


CASES: list[tuple[str, Any, list[str]]] = [
    ("no call", [], ["a", "a-2", "theirs"]),
    ("one", [_entry("a")], ["theirs"]),
    ("one that is gone", [_entry("gone")], ["theirs"]),
    ("somebody else's", [_entry("theirs")], ["theirs"]),
    ("without containers", [_entry("a", "none")], ["a", "a-2", "theirs"]),
    ("another program", [_entry("a", "/bin/evil")], ["a", "a-2", "theirs"]),
    ("no calls", ["a", 3, None], ["a", "a-2", "theirs"]),
]


@pytest.mark.parametrize(("entries", "left"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("runtime", run_containers.RUNTIMES)
def test_docker_json_says_where_to_look_and_the_label_what_is_removed(
    run: Run, fake: Fake, entries: Any, left: list[str], runtime: str
) -> None:
    """A job can write any name into docker.json."""
    for name in ("a", "a-2"):
        fake.has(name, runtime, **_own(run))
    fake.has("theirs", runtime)
    run.write("")
    swapped = [
        {**entry, "runtime": runtime} if isinstance(entry, dict) and entry["runtime"] == "docker" else entry
        for entry in entries
    ]
    _started(run, *swapped)
    assert run_containers.remove(str(run.path)) == []
    assert fake.left(runtime) == left


@pytest.mark.parametrize("labels", [{}, {"ci-tasks_dir": "/theirs", "ci-tasks_run": "7"}], ids=["as planned", "forged"])
@pytest.mark.parametrize("journal", ['{"calls": []}', "{broken", None])
def test_a_plan_that_a_job_rewrote_makes_no_other_container_the_runs(
    run: Run, fake: Fake, labels: dict[str, str], journal: str | None
) -> None:
    fake.has("ours", **_own(run))
    fake.has("theirs", **{"ci-tasks_run": "7", "ci-tasks_dir": "/theirs"})
    _rules(run, **labels)
    if journal is not None:
        Path(run.paths.docker).write_text(journal)
    assert run_containers.RunContainers(str(run.path), thorough=True).remove() == []
    assert fake.left() == ["theirs"]


def test_containers_are_numbered_as_the_run_started_them(run: Run, fake: Fake) -> None:
    for name in ("late", "a-2", "a"):
        fake.has(name, **_own(run))
    _rules(run)
    _started(run, _entry("a"), _entry(None), _entry("a-2"))
    containers = run_containers.RunContainers(str(run.path)).find()
    assert {container.name: container.number for container in containers} == {"a": 1, "a-2": 2, "late": 3}


def test_the_daemon_is_the_one_that_the_job_used(run: Run, fake: Fake) -> None:
    run.write("", host_env={"DOCKER_HOST": "unix:///other"})
    _started(run, _entry("a"))
    run_containers.remove(str(run.path))
    assert fake.calls("inspect") == ["docker inspect --type container -- a [unix:///other]"]


def test_what_could_not_be_removed_is_said_with_its_reason(run: Run, fake: Fake) -> None:
    fake.has("a", **_own(run))
    fake.be("sticky")
    _started(run, _entry("a"))
    assert run_containers.remove(str(run.path)) == ["container a: Error response from daemon: device or resource busy"]


def test_hanging_daemons_share_one_timeout(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is not asked at all, and a later question has little time left."""
    monkeypatch.setattr(run_containers, "TIMEOUT", 1.0)
    monkeypatch.setattr(run_containers, "SHORT_TIMEOUT", 0.0)
    fake.be("hangs")
    _started(run, _entry("a"), _entry("b", "podman"))
    containers = run_containers.RunContainers(str(run.path))
    assert len(containers.remove()) == 2
    assert [call.split()[0] for call in fake.calls()] == ["docker"]
    containers.stop()
    assert len(fake.calls()) == 1


def test_what_a_client_that_hangs_has_started_is_killed_with_it(
    run: Run, fake: Fake, until: Callable[..., Any]
) -> None:
    """As the ssh of DOCKER_HOST=ssh://…, which has the client's standard output."""
    program = fake.home / "bin" / "docker"
    program.write_text(f"#!/bin/sh\nsleep 300 & echo $! > {run.path}/child\nwait\n")
    client = run_containers.DockerClient("docker", dict(os.environ))
    assert client.run("ps", timeout=1.0).timed_out
    until(lambda: processes.start_time(run.pid("child")) is None)


def test_a_run_stops_its_containers_at_every_end_before_it_removes_them(
    run: Run, fake: Fake, until: Callable[..., Any]
) -> None:
    """After their clients are gone, since a client could still start one."""
    fake.has("a", **_own(run))
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
