"""Locks of GPUs and of the host, against real processes, the sample's lock script, and each other."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.codec import RecordError, decode
from ci_tasks.agent.gpus import lock_files, nvidia_smi, run_resources
from ci_tasks.agent.gpus.nvidia_smi import Gpu, GpuProcess, GpuSnapshot
from ci_tasks.agent.gpus.run_resources import ResourcesUnavailable, RunResources, visible_gpus
from ci_tasks.agent.records import AGENT, JOB, GpuRequest, Plan

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

Until = Callable[..., Any]
SCRIPT = Path(__file__).parents[3] / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
WAITS = b"[gpu_lock_exec] try_acquire_count failed, sleep and retry (only got: [0])\n"


class Monitor:
    """Shows the snapshot that a test sets."""

    def __init__(self) -> None:
        self.problem = ""
        self.latest: GpuSnapshot | None = None
        self.see(8)

    def see(self, count: int, *apps: GpuProcess) -> None:
        self.latest = GpuSnapshot(tuple(Gpu(at, f"GPU-{at}", "H200", "580", 4, 143771) for at in range(count)), apps)

    def close(self) -> None:
        pass


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Monitor:
    made = Monitor()
    monkeypatch.setattr(nvidia_smi, "GpuMonitor", lambda interval: made)
    return made


@pytest.fixture
def new(
    gpu_host: GpuHost, monitor: Monitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunResources]]:
    monkeypatch.setattr(run_resources, "REFRESH_SECONDS", 0)
    made: list[RunResources] = []

    def make(count: int, by: str = AGENT, **more: Any) -> RunResources:
        request = GpuRequest(count, by, gpu_host.pattern, **more)  # type: ignore[arg-type]
        made.append(RunResources(Plan(gpu_locks=request, image="i"), poll_seconds=0))
        made[-1].poll()
        return made[-1]

    yield make
    for resources in made:
        resources.close()


def test_the_agent_takes_the_lowest_free_gpus_and_shows_them_to_the_job(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources]
) -> None:
    gpu_host.hold(1)
    monitor.see(4, GpuProcess("GPU-0", 42, 100, "x"))
    mine = new(2)
    assert (mine.are_ready, mine.gpu_ids, mine.gpu_uuids) == (True, [2, 3], ["GPU-2", "GPU-3"])
    assert mine.environ == {"CUDA_VISIBLE_DEVICES": "2,3", "CI_TASKS_GPU_IDS": "2,3"}
    assert (len(mine.descriptors), gpu_host.free(4)) == (2, [0])
    mine.close()
    assert gpu_host.free(4) == [0, 2, 3]


def test_all_or_none_and_who_holds_what_is_named(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = gpu_host.hold(0, 1, 3, CI_TASKS_RUN_DIR="/runs/batch/07")
    monitor.see(6, GpuProcess("GPU-5", 4242, 62464, "python train.py"))
    mine = new(4)
    assert (mine.phase, mine.gpu_ids, gpu_host.free()) == ("waiting", None, [2, 4, 5, 6, 7])
    others = ["GPU 5: 61 GiB in use by pid 4242 (python train.py) without a lock", "GPUs 6-7 do not exist here"]
    assert mine.waiting == ["GPUs 0-1, 3 held by run batch.07", *others]
    monkeypatch.setattr(lock_files, "LOCKS", "/no/such/file")
    monitor.problem = "no answer from nvidia-smi within 20 s"
    mine.poll()
    assert mine.waiting == ["GPUs 0-1, 3 held by an unknown process", *others, monitor.problem]
    gpu_host.end(holder)
    mine.poll()
    assert (mine.gpu_ids, mine.waiting, mine.phase) == ([0, 1, 2, 3], [], "running")


# -- the job's own script ----------------------------------------------------------------------------------------------


@pytest.fixture
def script(gpu_host: GpuHost, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the sample's lock script."""

    def start(count: int) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "CI_TASKS_GPU_LOCK_DIR": str(gpu_host.path), "CI_TASKS_RUN_DIR": str(tmp_path)}
        argv = [sys.executable, str(SCRIPT), "--count", str(count), "--", "sleep", "300"]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ))
        return started[-1]

    started: list[subprocess.Popen[bytes]] = []
    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    processes.kill_all(str(tmp_path), None)


def test_gpus_that_do_not_exist_are_kept_from_the_job_until_it_has_its_own(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources], script: Any
) -> None:
    gpu_host.hold(0)
    monitor.see(3)
    mine = new(2, JOB)
    assert (mine.are_ready, mine.waiting, gpu_host.free()) == (True, [], [1, 2])
    job = script(2)
    while mine.gpu_ids is None:
        mine.read_output(os.read(job.stdout.fileno(), 7))
    assert (mine.gpu_ids, mine.environ, mine.descriptors) == ([1, 2], {}, [])
    assert gpu_host.free() == [3, 4, 5, 6, 7]


OUTPUTS = {
    "in pieces": ([b"[gpu_lock_exec] Acq", b"uired GPUs: 1,0\n"], [0, 1]),
    "after others": ([b"x\n[gpu_lock_exec] Acquired GPUs: 2\nmore"], [2]),
    "no whole line": ([b"[gpu_lock_exec] Acquired GPUs: 1"], None),
    "inside a line": ([b"he said [gpu_lock_exec] Acquired GPUs: 1\n"], None),
    "of a GPU that we hold": ([b"[gpu_lock_exec] Acquired GPUs: 7\n"], None),
    "a long line": ([b"x" * 9000, b"\n[gpu_lock_exec] Acquired GPUs: 3\n"], [3]),
}


@pytest.mark.parametrize(("chunks", "gpus"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_scripts_message_says_which_gpus_the_job_has(
    monitor: Monitor, new: Callable[..., RunResources], chunks: list[bytes], gpus: list[int] | None
) -> None:
    monitor.see(4)
    mine = new(2, JOB)
    for chunk in chunks:
        mine.read_output(chunk)
    assert mine.gpu_ids == gpus


def test_a_gpu_that_is_used_without_a_lock_is_blocked_and_one_whose_user_has_its_lock_is_not(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources]
) -> None:
    holder = gpu_host.hold(0, 1, CI_TASKS_RUN_DIR="/another/run/01")
    monitor.see(8, GpuProcess("GPU-0", holder.pid, 62464, "python"))
    mine = new(2, JOB)
    assert (mine.gpu_ids, mine.blocked) == (None, {}), "another run's locks are not the job's"
    gpu_host.end(holder)  # gone, but its children still compute
    mine.poll()
    assert (list(mine.blocked), gpu_host.free()) == ([0], [1, 2, 3, 4, 5, 6, 7])
    monitor.see(8)
    mine.poll()
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_runs_that_block_the_same_gpus_leave_no_gap(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources]
) -> None:
    monitor.see(4)
    one, other = new(1, JOB), new(1, JOB)
    one.close()
    assert gpu_host.free() == [0, 1, 2, 3]
    other.stop_waiting()
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


def _end(using: dict[RunResources, tuple[list[int], list[int]]], resources: RunResources) -> None:
    for descriptor in using.pop(resources)[1]:
        os.close(descriptor)
    resources.close()


def _stand_in(pattern: str, count: int) -> dict[int, int]:
    """An attempt of CI's lock script: {GPU id: descriptor}, all or none."""
    held: dict[int, int] = {}
    for gpu in range(8):
        descriptor = os.open(pattern.format(gpu_id=gpu), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held[gpu] = descriptor
        except BlockingIOError:
            os.close(descriptor)
        if len(held) == count:
            return held
    for descriptor in held.values():
        os.close(descriptor)
    return {}


@pytest.mark.parametrize("seed", range(5))
def test_no_gpu_is_given_twice_and_every_client_gets_its_gpus(
    gpu_host: GpuHost, new: Callable[..., RunResources], seed: int
) -> None:
    """Twelve clients of one to eight GPUs, some with a script, in random order, each three times; a random one ends
    while it waits."""
    rng = random.Random(seed)
    left = [(rng.choice((1, 2, 4, 8)), rng.choice((AGENT, JOB))) for _ in range(36)]
    waiting: list[tuple[RunResources, int, str]] = []
    using: dict[RunResources, tuple[list[int], list[int]]] = {}  # GPUs, and descriptors of a script
    for _ in range(20000):
        if left and len(waiting) + len(using) < 12:
            count, by = left.pop()
            waiting.append((new(count, by, simulated=8), count, by))
        if using and rng.random() < 0.3:
            _end(using, rng.choice(list(using)))
        if waiting and rng.random() < 0.01:
            client = waiting.pop(rng.randrange(len(waiting)))
            client[0].close()
            left.append(client[1:])
        if not waiting:
            if not left:
                break
            continue
        resources, count, by = rng.choice(waiting)
        resources.poll()
        got = _stand_in(gpu_host.pattern, count) if by == JOB else {}
        if by == JOB:
            ids = ",".join(map(str, got))
            resources.read_output(f"[gpu_lock_exec] Acquired GPUs: {ids}\n".encode() if got else WAITS)
        if resources.gpu_ids is not None:
            assert by == AGENT or resources.gpu_ids == sorted(got)
            taken = {gpu for gpus, _ in using.values() for gpu in gpus}
            assert taken.isdisjoint(resources.gpu_ids), "given twice"
            using[resources] = resources.gpu_ids, list(got.values())
            waiting = [client for client in waiting if client[0] is not resources]
    assert (left, waiting) == ([], []), "a client starves, or all wait for each other"
    for resources in list(using):
        _end(using, resources)
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


# -- what cannot be, and the host's named locks ------------------------------------------------------------------------

SHOWN = GpuSnapshot(tuple(Gpu(at, "", "", "580", 0, None) for at in range(4)))
PROBLEMS = [
    (GpuRequest(8), SHOWN, "this host has 4 GPUs, the job needs 8"),
    (GpuRequest(9, simulated=16), SHOWN, "this host has 8 GPUs, the job needs 9"),
    (GpuRequest(1), GpuSnapshot(problem="NVIDIA-SMI has failed"), "nvidia-smi shows no GPUs: NVIDIA-SMI has failed"),
    (GpuRequest(3, declared=2), GpuSnapshot(problem=nvidia_smi.NO_PROGRAM), "this host has 2 GPUs, the job needs 3"),
    (GpuRequest(1, pattern="/proc/{gpu_id}/x"), SHOWN, "lock file /proc/4/x: No such file or directory"),
]


@pytest.mark.parametrize(("request_", "snapshot", "reason"), PROBLEMS, ids=[reason for *_, reason in PROBLEMS])
def test_a_request_that_can_never_be_met_has_a_reason(
    monitor: Monitor, request_: GpuRequest, snapshot: GpuSnapshot, reason: str
) -> None:
    monitor.latest = snapshot
    with pytest.raises(ResourcesUnavailable, match=f"^{reason}$"):
        RunResources(Plan(gpu_locks=request_, image="i")).poll()


def test_named_locks_are_taken_in_order_and_none_past_one_that_is_held(gpu_host: GpuHost, tmp_path: Path) -> None:
    """So that two runs that want both cannot each have one."""
    holder = gpu_host.hold(str(gpu_host.path / "ci-tasks-a.lock"), CI_TASKS_RUN_DIR="/runs/batch/02")
    mine = RunResources(Plan(exclusive=("../b", "a")), 0)
    before = {path.name for path in gpu_host.path.parent.iterdir()}
    mine.poll()
    assert (mine.are_ready, len(mine.descriptors)) == (False, 1)  # "../b" comes before "a"
    assert mine.waiting == ["a held by run batch.02"]
    gpu_host.end(holder)
    mine.poll()
    assert (mine.are_ready, mine.waiting, len(mine.descriptors)) == (True, [], 2)
    assert {path.name for path in gpu_host.path.parent.iterdir()} == before, "a name cannot leave the directory"
    simulated = RunResources(
        Plan(exclusive=("a",), gpu_locks=GpuRequest(0, pattern=f"{tmp_path}/sim/{{gpu_id}}", simulated=1)), 0
    )
    simulated.poll()
    assert simulated.are_ready, "runs with simulated GPUs have their own"
    mine.close()
    simulated.close()
    assert lock_files.is_free(str(gpu_host.path / "ci-tasks-a.lock"))


def test_the_agents_choice_is_read_from_the_jobs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(run_resources.ENV_GPU_IDS, raising=False)
    assert visible_gpus() == {}
    monkeypatch.setenv(run_resources.ENV_GPU_IDS, "2,3")
    assert visible_gpus() == {"CUDA_VISIBLE_DEVICES": "2,3"}


def test_what_is_null_or_absent_in_the_plan_is_as_in_ci() -> None:
    value = {"count": 4, "by": "job", "simulated": None, "of_a_later_version": 1}
    request = decode(GpuRequest, value, where="plan.json")
    assert request == GpuRequest(4, "job", "/dev/shm/custom_gpu_lock_{gpu_id}.lock", 8, None)
    assert request.paths[5] == "/dev/shm/custom_gpu_lock_5.lock"
    assert GpuRequest(1, pattern="/a{b}/{0}/{gpu_id}", total=2).paths == {0: "/a{b}/{0}/0", 1: "/a{b}/{0}/1"}
    for more in ({"pattern": "/dev/shm/lock"}, {"by": "magic"}):
        with pytest.raises(RecordError, match="gpu_locks"):
            decode(Plan, {"gpu_locks": {"count": 1, **more}}, where="plan.json")
