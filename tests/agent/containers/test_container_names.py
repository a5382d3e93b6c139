"""A script's own names of its containers."""

from __future__ import annotations

import pytest

from ci_tasks.agent.containers.container_names import names_here, with_names_here
from ci_tasks.agent.records import DockerInvocation

NAMES = {"box": "ci-tasks-1"}
CASES = [
    ("exec -t box bash -c true", "exec -t ci-tasks-1 bash -c true"),
    ("exec -e A=box box echo box", "exec -e A=box ci-tasks-1 echo box"),
    ("cp box:/a/box.txt out", "cp ci-tasks-1:/a/box.txt out"),
    ("logs --tail 5 box", "logs --tail 5 ci-tasks-1"),
    ("container inspect box", "container inspect ci-tasks-1"),
    ("-H unix://x container rm -f box", "-H unix://x stop -t 0 ci-tasks-1"),
    ("rm -f box other", "rm -f ci-tasks-1 other"),
    ("exec other ls", "exec other ls"),
    ("build -t boxes .", "build -t boxes ."),
]


@pytest.mark.parametrize(("ci", "here"), CASES)
def test_a_command_finds_the_container_under_its_name_here(ci: str, here: str) -> None:
    assert with_names_here(ci.split(), NAMES)[0] == here.split()


def test_the_last_container_of_a_name_is_meant() -> None:
    runs = [
        DockerInvocation(("run", "--name=box", "image"), (), (), name, "docker")
        for name in ("ci-tasks-1", "ci-tasks-2")
    ]
    other = DockerInvocation(("run", "image"), (), (), "ci-tasks-3", "docker")
    pull = DockerInvocation(("pull", "image"), (), (), None, "docker")
    assert names_here([*runs, other, pull]) == {"box": "ci-tasks-2"}
