"""What `bench/faults.py` does to a run, when, and what must come of it: phases, faults, the table of expectations."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fault_daemon import Unreached, until
from fault_world import World

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
        _later(world.chance.uniform(0.2, 1.5), lambda: world.daemon and world.daemon.hold.unlink(missing_ok=True))


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
    mark, run = f"CI_TASKS_RUN_DIR={world.there}/", re.compile(rb"^docker\0(.*\0)?run\0")
    found = []
    for pid in world.processes(mark):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as source:
            if run.match(source.read()):
                found.append(pid)
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
    """Until the client says so; then it answers again."""
    assert world.daemon is not None
    with world.daemon.hanging():
        _await_silence(world)


def daemon_hang_ctrl_c(world: World, phase: str) -> None:
    """It answers again when the client has ended."""
    assert world.daemon is not None
    daemon = world.daemon
    daemon.hang()

    def resume() -> None:
        daemon.resume()
        daemon.call("version")  # returns once it answers

    world.after = resume
    _await_silence(world)
    ctrl_c(world, phase)


def _await_silence(world: World) -> None:
    begun = time.monotonic()
    until(lambda: "docker has not answered for" in world.output(), "the client says that docker does not answer")
    world.notes.append(f"noticed after {time.monotonic() - begun:.0f} s")


def nothing(world: World, phase: str) -> None:
    """The job does it."""


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


@dataclass(frozen=True)
class Case:
    """`ends` are the statuses that are right in the record at the end, after `home`; `codes` are the client's exit
    codes before that (None: of the status). `home`: commands that bring the run home, one by chance. `stays`: something
    may be left on the box until `clean --all`."""

    fault: str
    phase: str
    inflict: Callable[[World, str], None]
    ends: tuple[str, ...]
    docker: bool | None = None  # None: with and without
    codes: tuple[int, ...] | None = None
    home: tuple[str, ...] = ()
    stays: bool = False
    exit_code: int | None = None  # of the job, where the fault decides it
    rows: int = 1
    hostile: str = ""
    names_left: bool = False  # the record says what could not be removed
    reach: Callable[[World], contextlib.AbstractContextManager[None]] = running


ATTACH = ("attach last", "logs last --follow", "fetch last")
_REACH = {SYNC: syncing, LOCKS: waiting, PULL: pulling, RUNNING: running, FETCHING: fetching}


def _cases() -> Iterator[Case]:
    for phase in PHASES:
        docker = {LOCKS: False, PULL: True}.get(phase)
        reach = _REACH[phase]
        of_host = collecting if phase == FETCHING else reach

        def case(
            inflict: Callable[[World, str], None],
            *ends: str,
            reach: Callable[[World], contextlib.AbstractContextManager[None]] = reach,
            docker: bool | None = docker,
            phase: str = phase,
            **more: object,
        ) -> Case:
            return Case(inflict.__name__, phase, inflict, ends, docker, reach=reach, **more)  # type: ignore[arg-type]

        for link_fault in (sshd_child, blackhole, blackhole_long, sshd_restart, clock_step):
            yield case(link_fault, OWN)
        # A client that was killed before it had sent everything began nothing.
        ends = (OWN, "lost") if phase == SYNC else (OWN,)
        yield case(client_kill, *ends, home=ATTACH, codes=(137,))
        yield case(client_disk, OWN, home=("fetch last", "attach last"), codes=(125,))
        # Only what is written while there is no room is lost.
        yield case(host_disk, OWN if phase == FETCHING else "blocked")
        if phase != SYNC:
            yield case(runner_kill, "lost", reach=of_host)
        for interrupt in (ctrl_c, ctrl_c_twice):
            yield case(interrupt, *((OWN,) if phase == FETCHING else ("cancelled",)))
        if phase in (PULL, RUNNING):
            yield case(docker_client_kill, "failed", docker=True, exit_code=137)
        if phase in (PULL, RUNNING, FETCHING):
            how = OWN if phase == FETCHING else "blocked"
            yield case(dockerd_kill, how, docker=True, reach=of_host, stays=True)
        if phase == RUNNING:
            yield case(out_of_memory, "failed", docker=True, exit_code=137)


def _cases_of_several_rows() -> Iterator[Case]:
    def case(inflict: Callable[[World, str], None], end: str, docker: bool | None = None, **more: object) -> Case:
        name, reach = f"{inflict.__name__}_rows", all_running
        return Case(name, RUNNING, inflict, (end,), docker, reach=reach, rows=3, **more)  # type: ignore[arg-type]

    for link_fault in (blackhole, sshd_child, sshd_restart):
        yield case(link_fault, OWN)
    yield case(ctrl_c, "cancelled")
    yield case(client_kill, OWN, docker=False, codes=(137,), home=("attach last",))  # what has not begun never does
    yield case(daemon_hang, OWN, docker=True)
    yield case(dockerd_kill, "blocked", docker=True, stays=True)


def _cases_of_hung_daemons() -> Iterator[Case]:
    for phase, reach in ((PULL, pulling), (RUNNING, running), (FETCHING, collecting)):
        yield Case("daemon_hang", phase, daemon_hang, (OWN,), docker=True, reach=reach)
    more = {"docker": True, "stays": True, "names_left": True}
    for phase, reach in ((PULL, pulling), (RUNNING, running)):
        yield Case("daemon_hang_ctrl_c", phase, daemon_hang_ctrl_c, ("cancelled",), reach=reach, **more)  # type: ignore[arg-type]


# What jobs do that mean harm, or are careless; each ends as it would without, but where the disk is full.
_HOSTILE = {
    "status": """\
( while sleep 0.05; do echo '{"state": "ended", "end": "exit", "exit_code": 0}' > "$CI_TASKS_RUN_DIR/status.json"; done
) > /dev/null 2>&1 &""",
    "survivor": """\
env -i setsid sleep SURVIVOR > /dev/null 2>&1 < /dev/null &
( exec setsid sh -c 'env -i setsid sleep SURVIVOR & exit' ) > /dev/null 2>&1 &""",
    "disk": 'cat /dev/zero > filler 2> /dev/null; echo "the disk is full" >&2',
    "flood": "seq 1 3000000",
    "escapes": r"""printf '\033]52;c;Zm9v\007\033]0;title\007\033[2J\033[1;1H\033P+q\033\\\n'""",
    "plan": """\
cat > "$CI_TASKS_RUN_DIR/plan.json" << 'EOF'
{"id": "x", "row": "x", "owned": ["WORLD/precious"], "workspace": "WORLD/precious", "setup": "WORLD/precious",
 "artifacts": ["WORLD"], "keep": true, "host_env": {"PATH": "/nonexistent"}}
EOF""",
}


def _cases_of_hostile_jobs() -> Iterator[Case]:
    for name, script in _HOSTILE.items():
        ends = ("blocked",) if name == "disk" else (OWN,)
        docker = None if name in ("flood", "escapes") else False
        yield Case(f"hostile_{name}", RUNNING, nothing, ends, docker=docker, reach=running, hostile=script)


CASES = [*_cases(), *_cases_of_several_rows(), *_cases_of_hung_daemons(), *_cases_of_hostile_jobs()]

# What cannot be: said in the table, so that nobody looks for it.
NOT_APPLICABLE = {
    ("runner_kill", SYNC): "there is no runner yet",
    ("docker_client_kill", SYNC): "docker has no part in it",
    ("docker_client_kill", LOCKS): "the job has not begun",
    ("docker_client_kill", FETCHING): "the client has ended with the job",
    ("dockerd_kill", SYNC): "docker has no part in it",
    ("dockerd_kill", LOCKS): "the job has not begun",
    ("out_of_memory", SYNC): "there is no container yet",
    ("out_of_memory", LOCKS): "there is no container yet",
    ("out_of_memory", PULL): "there is no container yet",
    ("out_of_memory", FETCHING): "the container has ended",
}
