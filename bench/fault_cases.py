"""What `bench/faults.py` does to a run, when, and what must come of it: phases, faults, the table of expectations."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.fault_world import Unreached, World, until
from tests.parts.processes import command_lines, with_variable

SYNC, LOCKS, PULL, RUNNING, FETCHING = "sync", "locks", "pull", "running", "fetching"
PHASES = (SYNC, LOCKS, PULL, RUNNING, FETCHING)

OWN = "own"  # the job's own result
NOTICED = 15.0  # seconds in which a dead link has to be noticed
_PACK_UNDER_WAY = 1 << 20
_MADE_UNDER_WAY = 1 << 20


# -- phases: each a block in which the run stands where it is to stand -----------------------------------------------


@contextmanager
def syncing(world: World) -> Iterator[None]:
    """A part of the pack is on its way; the rest stands still."""
    world.start("remote", "--host", "box", world.label)
    world.reaches(lambda: world.road.carried[0] > _PACK_UNDER_WAY, "the pack is being sent")
    with _standing_still(world):
        yield


@contextmanager
def waiting(world: World) -> Iterator[None]:
    world.lock(7)
    world.start("remote", "--host", "box", world.label)
    world.reaches(lambda: world.status_there().get("phase") == "waiting", "the job waits for GPUs")
    time.sleep(world.chance.uniform(0, 0.3))
    yield
    _later(world.chance.uniform(0.2, 1.5), world.unlock)


@contextmanager
def pulling(world: World) -> Iterator[None]:
    """`docker run` hangs: the registry does not answer, or the container is just being made."""
    assert world.daemon is not None
    if world.chance.random() < 0.5:
        world.image_road.blackhole()
        world.start("remote", "--host", "box", world.label)
        world.reaches(lambda: world.image_road.connections, "the image is being pulled")
        time.sleep(world.chance.uniform(0, 0.2))
        yield
        _later(world.chance.uniform(0.2, 1.5), world.image_road.restore)
    else:
        world.daemon.hold.touch()
        world.start("remote", "--host", "box", world.label)
        world.reaches(world.daemon.held.exists, "the container is being made")
        yield
        _later(world.chance.uniform(0.2, 1.5), partial(world.daemon.hold.unlink, missing_ok=True))


@contextmanager
def running(world: World) -> Iterator[None]:
    world.start("remote", "--host", "box", world.label)
    lines = world.chance.randint(10, 100)
    world.reaches(lambda: f"line {lines} of the job" in world.text_there("log"), "the job runs")
    yield


@contextmanager
def all_running(world: World) -> Iterator[None]:
    """Several rows, each of which writes. Those in containers on the host's network run one after the other."""
    at_once = world.rows if world.daemon is None else 1
    world.start("remote", "--host", "box", world.label)
    world.reaches(lambda: len(world.rows_that_write()) >= at_once, "all jobs run")
    yield


@contextmanager
def fetching(world: World) -> Iterator[None]:
    """A part of what the job made is on its way home; the rest stands still."""
    world.start("remote", "--host", "box", world.label)
    world.reaches(lambda: world.road.carried[1] > _MADE_UNDER_WAY, "artifacts come home")
    with _standing_still(world):
        yield


@contextmanager
def collecting(world: World) -> Iterator[None]:
    """The job has ended, and its runner has not: what FETCHING means for faults of the host."""
    world.start("remote", "--host", "box", world.label)
    world.reaches(lambda: '"ended"' in world.text_there("events.jsonl"), "the runner collects")
    if world.status_there().get("state") != "running":
        raise Unreached("the runner was quicker than we")
    yield


@contextmanager
def _standing_still(world: World) -> Iterator[None]:
    world.road.blackhole()
    yield
    world.road.restore()


def _later(seconds: float, do: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()


# -- faults: each does its harm, and returns what is to be done when the client has ended -----------------------------


def sshd_child(world: World, phase: str) -> None:
    world.box.kill_children()


def blackhole(world: World, phase: str) -> None:
    """Shorter than what is taken for a death."""
    world.road.blackhole()
    time.sleep(world.chance.uniform(0.5, 4))
    world.road.restore()


def blackhole_long(world: World, phase: str) -> None:
    world.road.blackhole()
    begun = time.monotonic()
    try:
        until(lambda: "is down (" in world.output(), "the client says that the link is down", NOTICED)
        world.notes.append(f"noticed after {time.monotonic() - begun:.1f} s")
        time.sleep(world.chance.uniform(0, 3))
    finally:
        world.road.restore()


def sshd_restart(world: World, phase: str) -> None:
    world.box.stop()
    time.sleep(world.chance.uniform(0, 3))
    world.box.restart()


def client_kill(world: World, phase: str) -> None:
    assert world.client is not None
    os.kill(world.client.pid, signal.SIGKILL)
    world.client.wait()


def client_disk(world: World, phase: str) -> None:
    world.after = world.fill(world.home)


def runner_kill(world: World, phase: str) -> None:
    os.kill(world.status_there()["pid"], signal.SIGKILL)


def docker_client_kill(world: World, phase: str) -> None:
    """The `docker run` that the job's script started, and nothing else."""
    runs = with_variable(f"CI_TASKS_RUN_DIR={world.there}/", "docker")
    found = [pid for pid in runs if "\0run\0" in "".join(command_lines([pid]))]
    if not found:
        raise Unreached("no docker client to be seen")
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def dockerd_kill(world: World, phase: str) -> None:
    assert world.daemon is not None
    world.daemon.kill()
    world.daemon.hold.unlink(missing_ok=True)
    world.after = world.daemon.start


def daemon_hang(world: World, phase: str) -> None:
    """For a while. Nobody is told before the row's time is over: only then docker is asked."""
    assert world.daemon is not None
    with world.daemon.hanging():
        time.sleep(world.chance.uniform(1, 10))


def daemon_hang_ctrl_c(world: World, phase: str) -> None:
    """It answers again when the client has ended."""
    assert world.daemon is not None
    daemon = world.daemon
    daemon.hang()

    def resume() -> None:
        daemon.resume()
        daemon.call("version")  # returns once it answers

    world.after = resume
    time.sleep(world.chance.uniform(0, 3))
    ctrl_c(world, phase)


def out_of_memory(world: World, phase: str) -> None:
    run = world.run_there()
    assert run is not None
    (run / "workspace/eat").touch()


def host_disk(world: World, phase: str) -> None:
    world.after = world.fill(world.there)


def clock_step(world: World, phase: str) -> None:
    """Of the processes on the box, through a preloaded library."""
    assert world.clock is not None
    world.clock.set_ahead(world.chance.choice([1, -1]) * world.chance.choice([30, 3600, 3 * 86400]))


def ctrl_c(world: World, phase: str) -> None:
    assert world.client is not None
    os.kill(world.client.pid, signal.SIGINT)
    time.sleep(world.chance.uniform(0, 0.5))


def ctrl_c_twice(world: World, phase: str) -> None:
    ctrl_c(world, phase)
    with contextlib.suppress(ProcessLookupError):
        ctrl_c(world, phase)


Inflict = Callable[[World, str], None]


@dataclass(frozen=True)
class Case:
    """`ends` are the statuses that are right in the record at the end, after `home`; `codes` are the client's exit
    codes before that (None: of the status). `home`: commands that bring the run home, one by chance. `stays`: something
    may be left on the box until `clean --all`."""

    fault: str
    phase: str
    inflict: Inflict
    ends: tuple[str, ...]
    docker: bool | None = None  # None: with and without
    codes: tuple[int, ...] | None = None
    home: tuple[str, ...] = ()
    stays: bool = False
    exit_code: int | None = None  # of the job, where the fault decides it
    rows: int = 1
    names_left: bool = False  # the record says what could not be removed
    reach: Callable[[World], contextlib.AbstractContextManager[None]] = running


_REACH = {SYNC: syncing, LOCKS: waiting, PULL: pulling, RUNNING: running, FETCHING: fetching}
_DOCKER = {LOCKS: False, PULL: True}  # where only one of both has the phase


def _cases(inflict: Inflict, *ends: str, phases: tuple[str, ...] = PHASES, of: str = "", **more: Any) -> list[Case]:
    """A fault in several phases. `of`: "host" if FETCHING means that the runner collects, "rows" for three rows."""
    name, found = inflict.__name__, []
    for phase in phases:
        values = {"docker": _DOCKER.get(phase), "reach": _REACH[phase], **more}
        if of == "host" and phase == FETCHING:
            values["reach"] = collecting
        if of == "rows":
            values |= {"reach": all_running, "rows": 3}
        found.append(Case(f"{name}_rows" if of == "rows" else name, phase, inflict, ends, **values))
    return found


_FETCH, _BEFORE, _JOB = (FETCHING,), PHASES[:-1], (PULL, RUNNING)
_ATTACH: dict[str, Any] = {"codes": (137,), "home": ("attach last", "logs last --follow", "fetch last")}
_LINK = (sshd_child, blackhole, sshd_restart)
_IN_A_CONTAINER: dict[str, Any] = {"docker": True, "of": "host"}
CASES = [
    *(case for fault in (*_LINK, blackhole_long, clock_step) for case in _cases(fault, OWN)),
    # A client that was killed before it had sent everything began nothing.
    *_cases(client_kill, OWN, "lost", phases=(SYNC,), **_ATTACH),
    *_cases(client_kill, OWN, phases=PHASES[1:], **_ATTACH),
    *_cases(client_disk, OWN, codes=(125,), home=("fetch last", "attach last")),
    # Only what is written while there is no room is lost.
    *_cases(host_disk, "blocked", phases=_BEFORE),
    *_cases(host_disk, OWN, phases=_FETCH),
    *_cases(runner_kill, "lost", phases=PHASES[1:], of="host"),
    *(case for fault in (ctrl_c, ctrl_c_twice) for case in _cases(fault, "cancelled", phases=_BEFORE)),
    *(case for fault in (ctrl_c, ctrl_c_twice) for case in _cases(fault, OWN, phases=_FETCH)),
    *_cases(docker_client_kill, "failed", phases=_JOB, docker=True, exit_code=137),
    *_cases(dockerd_kill, "blocked", phases=_JOB, stays=True, **_IN_A_CONTAINER),
    *_cases(dockerd_kill, OWN, phases=_FETCH, stays=True, **_IN_A_CONTAINER),
    *_cases(out_of_memory, "failed", phases=(RUNNING,), docker=True, exit_code=137),
    *_cases(daemon_hang, OWN, phases=(*_JOB, FETCHING), **_IN_A_CONTAINER),
    *_cases(daemon_hang_ctrl_c, "cancelled", phases=_JOB, docker=True, stays=True, names_left=True),
    # Several rows. What has not begun never does if its client is killed.
    *(case for fault in _LINK for case in _cases(fault, OWN, phases=(RUNNING,), of="rows")),
    *_cases(ctrl_c, "cancelled", phases=(RUNNING,), of="rows"),
    *_cases(client_kill, OWN, phases=(RUNNING,), of="rows", docker=False, codes=(137,), home=("attach last",)),
    *_cases(daemon_hang, OWN, phases=(RUNNING,), of="rows", docker=True),
    *_cases(dockerd_kill, "blocked", phases=(RUNNING,), of="rows", docker=True, stays=True),
]
