"""Images are pulled within bounded time; the last line of a log that grows says something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.config import HostSpec
from ci_tasks.hosts import provision
from ci_tasks.hosts.provision import DaemonSilent, can_pull, last_line, pull_command, pull_images
from ci_tasks.hosts.queries import LocalQueryRunner

DOCKER = HostSpec("h", runtime="docker")
PULLS = [
    (DOCKER, ["docker", "pull", "--quiet", "slimerl/slime"]),
    (HostSpec("h", runtime="podman"), ["podman", "pull", "--quiet", "docker.io/slimerl/slime"]),
]


@pytest.mark.parametrize(("host", "command"), PULLS)
def test_an_image_is_pulled_from_where_docker_would(host: HostSpec, command: list[str]) -> None:
    assert pull_command(host, "slimerl/slime")[-4:] == command


@pytest.mark.parametrize(
    ("host", "may"),
    [(DOCKER, True), (HostSpec("h", runtime="docker", pull="never"), False), (HostSpec("h", runtime="none"), False)],
)
def test_a_host_without_containers_or_that_is_not_to_pull_does_not(host: HostSpec, may: bool) -> None:
    assert can_pull(host) is may


class Pull:
    """Pulls x:1 on this machine with a script in docker's place."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program, self.patch = directory / "docker", monkeypatch
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        for name, value in (("POLL_INTERVAL_S", 0.05), ("DAEMON_QUERY_TIMEOUT_S", 0.5), ("REPORT_INTERVAL_S", 0.2)):
            monkeypatch.setattr(provision, name, value)
        self.notes: list[str] = []
        self.messages: list[str] = []

    def ends_with(self, script: str) -> tuple[int | None, str]:
        new = self.program.with_name("new")
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.replace(self.program)  # a query may be starting the old one
        answer = pull_images(LocalQueryRunner(), DOCKER, ["x:1"], self.notes.append, self.messages.append)["x:1"]
        return answer.code, answer.last_line


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pull:
    return Pull(tmp_path, monkeypatch)


def test_a_pull_that_ends_by_itself_ends_as_docker_says(pull: Pull) -> None:
    assert pull.ends_with("exit 0")[0] == 0
    assert pull.ends_with('[ "$1" = ps ] && exit 0; echo manifest unknown >&2; exit 1') == (1, "manifest unknown")


def test_a_long_pull_is_said_to_go_on_and_ends_in_time(pull: Pull) -> None:
    pull.patch.setattr(provision, "PULL_TIMEOUT_S", 2.0)
    assert pull.ends_with('[ "$1" = ps ] || exec sleep 600') == (124, "not pulled within 2 s")
    assert pull.messages
    assert all(message.startswith("pulling x:1 for ") for message in pull.messages)


def test_a_daemon_that_answers_nothing_is_named_and_given_up(pull: Pull) -> None:
    pull.patch.setattr(provision, "DAEMON_TIMEOUT_S", 1.5)
    pull.patch.setattr(provision, "PULL_TIMEOUT_S", 4.0)
    with pytest.raises(DaemonSilent, match=r"pulling x:1 for \d+ s; docker has not answered for \d+ s"):
        pull.ends_with("exec sleep 600")
    assert "; docker has not answered for " in pull.messages[0]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("first\nlast\n\n", "last"),
        ("##[group]Run tests\npytest -q\n##[endgroup]\n", "pytest -q"),
        ("##[group]Run tests\n", "Run tests"),
        ("::endgroup::\n", ""),
        ("##[error]no space left\n##[endgroup]\n", "no space left"),
        ("loading\n====================\n--------\n...\n", "loading"),
        ("======= 3 passed in 0.52s =======\n", "3 passed in 0.52s"),
        ("-- Docs: https://docs.pytest.org --\n", "-- Docs: https://docs.pytest.org --"),
        ("", ""),
    ],
)
def test_it_is_the_last_one_that_says_something(log: str, expected: str, tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    Path(run.log).write_text(log)
    assert last_line(run) == expected
