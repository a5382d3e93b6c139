"""Containers that earlier runs of this home could not remove: the next run does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent.cleanup.cancel import remove_left_containers
from ci_tasks.agent.run_directory import write_json

if TYPE_CHECKING:
    from tests.agent.conftest import Run
    from tests.agent.fake_docker import Fake

LEFT = ["containers may be left (old): docker did not answer within 5 s", "container old: busy", "/w: busy"]


@dataclass
class Home:
    """A run that starts, and the daemon."""

    new_run: Callable[..., Run]
    fake: Fake
    next: Run

    def earlier(self, name: str, **status: Any) -> Run:
        run = self.new_run(name)
        write_json(run.paths.status, status)
        self.fake.has("old", **{"ci-tasks_dir": str(run.path)})
        return run


@pytest.fixture
def home(new_run: Callable[..., Run], fake: Fake) -> Home:
    run = new_run("runs/batch/02")
    run.write("", container={"runtime": "docker"})
    fake.has("own", **{"ci-tasks_dir": str(run.path)})
    return Home(new_run, fake, run)


def test_a_container_of_an_ended_run_is_removed_and_its_status_says_so(home: Home) -> None:
    old = home.earlier("runs/older/01", state="ended", left=LEFT, sequence=7)
    remove_left_containers(str(home.next.path))
    assert home.fake.left() == ["own"]
    assert (old.status().left, old.status().sequence) == (("/w: busy",), 8)


STAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("of a run that goes on", "runs/older/01", {"state": "running"}),
    ("that somebody keeps", "runs/older/01", {"state": "ended", "kept": {"containers": ["old"]}}),
    ("of another home", "other/runs/older/01", {"state": "ended"}),
    ("of a run without a status", "runs/older/01", {}),
]


@pytest.mark.parametrize(("path", "status"), [case[1:] for case in STAYS], ids=[case[0] for case in STAYS])
def test_a_container_stays(home: Home, path: str, status: dict[str, Any]) -> None:
    home.earlier(path, **status)
    remove_left_containers(str(home.next.path))
    assert home.fake.left() == ["old", "own"]


def test_one_that_cannot_be_removed_stays_on_record(home: Home) -> None:
    old = home.earlier("runs/older/01", state="ended", left=LEFT)
    home.fake.be("sticky")
    remove_left_containers(str(home.next.path))
    assert old.status().left == tuple(LEFT)
