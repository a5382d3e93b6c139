"""A host that lies is refused by name, or taken for what it is; nothing else here changes.

`bench/hostile_host.py` has many more of the same cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.parts import hostile_cases
from tests.parts.hostile_cases import KINDS, Case
from tests.parts.hostile_server import HostileServer
from tests.parts.hostile_world import HARMLESS, REFUSED, WRONG, HostileWorld
from tests.parts.nightly import SEED

# Of each kind: every push tries other seeds, and `nox -s nightly` many.
CASES = 40 if os.environ.get("CI_TASKS_TEST_PROFILE") == "nightly" else 3
FIRST = Random(SEED).randrange(1 << 20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostileWorld]:
    with HostileWorld(tmp_path / "world") as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_host_says_is_refused_by_name_or_does_no_harm(world: HostileWorld, kind: str) -> None:
    outcomes = [world.perform(kind, seed) for seed in range(FIRST, FIRST + CASES)]
    assert [(outcome.seed, outcome.problems) for outcome in outcomes if outcome.verdict == WRONG] == []


def test_an_honest_host_is_believed(world: HostileWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing of the above would be shown."""
    monkeypatch.setitem(KINDS, "honest", lambda rng, near: Case(HostileServer(near.batch)))
    outcome = world.perform("honest", 0)
    assert (outcome.verdict, outcome.problems) == (HARMLESS, [])


def test_a_frame_that_none_of_our_hosts_sends_ends_the_connection_with_the_hosts_name(
    world: HostileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no dead link, which would be made again."""

    def noise(rng: object, near: hostile_cases.Surroundings) -> Case:
        return Case(HostileServer(near.batch, answers={"runs": lambda *_: iter([b"Segmentation fault\n"])}))

    monkeypatch.setitem(KINDS, "noise", noise)
    outcome = world.perform("noise", 0)
    assert (outcome.verdict, outcome.problems) == (REFUSED, [])
    assert outcome.message.startswith("box sent an invalid message: not a frame")


WRONGS: dict[str, Callable[[HostileWorld], object]] = {
    "a file beside the run": lambda world: (world.guard / "new").write_text("x"),
    "another content": lambda world: (world.guard / "01" / "precious").write_text("changed work!"),
    "a file that is gone": lambda world: (world.home / "runs/kept-batch/01/precious").unlink(),
    "a process that is gone": lambda world: world.kill_process(),
}


@pytest.mark.parametrize("what", WRONGS)
def test_harm_would_be_seen(world: HostileWorld, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setitem(KINDS, "honest", lambda rng, near: Case(HostileServer(near.batch)))
    monkeypatch.setattr("ci_tasks.run.attach.attach", lambda *_: WRONGS[what](world))
    assert world.perform("honest", 0).verdict == WRONG
