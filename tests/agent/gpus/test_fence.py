"""The fence against the lock script of the sample checkout, and against processes that hold locks or use GPUs."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.gpus import lock_files
from ci_tasks.agent.gpus.fence import Fence
from ci_tasks.agent.gpus.nvidia_smi import Gpu, GpuProcess, GpuSnapshot
from ci_tasks.agent.gpus.request import GpuRequest
from ci_tasks.agent.gpus.reservation import LockTimings

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

Until = Callable[..., Any]
SCRIPT = Path(__file__).parents[3] / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
QUICK = LockTimings(refresh=0, reserve_after=0, sleep=1)
WAITS = b"[gpu_lock_exec] try_acquire_count failed, sleep and retry (only got: [0])\n"


class Snapshots:
    """A snapshot source that a test sets."""

    problem = ""

    def __init__(self, count: int) -> None:
        self.count = count
        self.latest: GpuSnapshot | None = None
        self.see()

    def see(self, *apps: GpuProcess) -> None:
        gpus = tuple(Gpu(at, f"GPU-{at}", "H200", "580", 4, 143771) for at in range(self.count))
        self.latest = GpuSnapshot(gpus, apps)


class Job:
    """A run whose job is the sample's lock script, with the fence that goes with it."""

    def __init__(self, gpu_host: GpuHost, run_dir: Path, source: Snapshots, timings: LockTimings) -> None:
        self.gpu_host, self.run_dir = gpu_host, run_dir
        self.fence: Fence
        self.timings, self.source = timings, source
        self.output = b""
        self.script: subprocess.Popen[bytes] | None = None

    def begin(self, count: int, marked: bool = True) -> Job:
        self.fence = Fence(
            GpuRequest(count, pattern=self.gpu_host.pattern), str(self.run_dir), self.source, self.timings
        )
        self.fence.poll()
        environ = {**os.environ, "CI_TASKS_GPU_LOCK_DIR": str(self.gpu_host.path)}
        if marked:
            environ["CI_TASKS_RUN_DIR"] = str(self.run_dir)
        self.script = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--count", str(count), "--", "sleep", "300"],
            stdout=subprocess.PIPE,
            env=environ,
        )
        return self

    def watch(self, until: Callable[[], Any], reads_output: bool = True) -> Job:
        """As the supervisor does: poll, and read the job's output."""
        assert self.script is not None and self.script.stdout is not None
        deadline = time.monotonic() + 30
        with selectors.DefaultSelector() as selector:
            selector.register(self.script.stdout, selectors.EVENT_READ)
            while not until():
                assert time.monotonic() < deadline, (self.fence.waiting, self.output)
                self.fence.poll()
                for _ in selector.select(0.02):
                    chunk = os.read(self.script.stdout.fileno(), 7)
                    self.output += chunk
                    if reads_output:
                        self.fence.read_output(chunk)
        return self

    def end(self) -> None:
        self.fence.close()
        if self.script is not None:
            self.script.send_signal(signal.SIGTERM)
            self.script.send_signal(signal.SIGCONT)
            self.script.communicate()
            processes.kill_all(str(self.run_dir), None)


@pytest.fixture
def job(gpu_host: GpuHost, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(source: Snapshots, timings: LockTimings = QUICK) -> Job:
        run_dir = tmp_path / f"run-{len(made)}"
        run_dir.mkdir()
        made.append(Job(gpu_host, run_dir, source, timings))
        return made[-1]

    yield make
    for job in made:
        job.end()


def _waiting_after_a_tick(fence: Fence) -> list[str]:
    fence.poll()
    return fence.waiting


def _fence(gpu_host: GpuHost, source: Snapshots, count: int = 1) -> Fence:
    return Fence(GpuRequest(count, pattern=gpu_host.pattern), str(gpu_host.path / "run"), source, QUICK)


# -- what is fenced --------------------------------------------------------------------------------------------------


def test_gpus_that_do_not_exist_are_kept_from_the_job_until_it_has_its_own(
    job: Callable[..., Job], gpu_host: GpuHost
) -> None:
    holder = gpu_host.hold(0)
    run = job(Snapshots(3)).begin(2)
    assert gpu_host.free() == [1, 2]
    run.watch(lambda: run.fence.is_done)
    assert run.fence.gpu_ids == [1, 2]
    assert gpu_host.free() == [3, 4, 5, 6, 7]
    gpu_host.end(holder)


def test_a_gpu_that_is_used_without_a_lock_is_kept_until_it_is_free(gpu_host: GpuHost) -> None:
    source = Snapshots(8)
    source.see(GpuProcess("GPU-0", 4242, 62464, "python"))
    fence = _fence(gpu_host, source)
    fence.poll()
    assert (fence.fenced, gpu_host.free()) == ([0], [1, 2, 3, 4, 5, 6, 7])
    source.see()
    fence.poll()
    assert (fence.fenced, gpu_host.free()) == ([], [0, 1, 2, 3, 4, 5, 6, 7])


def test_a_gpu_whose_user_has_its_lock_is_none_of_the_fences_business(gpu_host: GpuHost) -> None:
    holder = gpu_host.hold(0)
    source = Snapshots(8)
    source.see(GpuProcess("GPU-0", holder.pid, 62464, "python"))
    fence = _fence(gpu_host, source)
    fence.poll()
    assert fence.fenced == []
    gpu_host.end(holder)  # gone, but its children still compute
    fence.poll()
    assert fence.fenced == [0]
    fence.close()


def test_fences_of_several_runs_leave_no_gap(gpu_host: GpuHost) -> None:
    one, other = _fence(gpu_host, Snapshots(4)), _fence(gpu_host, Snapshots(4))
    one.poll()
    other.poll()
    one.close()
    assert gpu_host.free() == [0, 1, 2, 3]
    other.close()
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


# -- how its end is seen ---------------------------------------------------------------------------------------------


def test_the_jobs_locks_are_seen_without_its_output(job: Callable[..., Job]) -> None:
    run = job(Snapshots(4)).begin(2)
    run.watch(lambda: run.fence.is_done, reads_output=False)
    assert run.fence.gpu_ids == [0, 1]


def test_the_jobs_output_is_read_where_its_processes_cannot_be_recognized(job: Callable[..., Job]) -> None:
    run = job(Snapshots(4)).begin(2, marked=False)
    run.watch(lambda: run.fence.is_done)
    assert run.fence.gpu_ids == [0, 1]


def test_where_nothing_can_be_seen_the_fence_stays_and_reserves_nothing(
    job: Callable[..., Job], gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_files, "LOCKS", "/no/such/file")
    run = job(Snapshots(4)).begin(2)
    run.watch(lambda: b"Acquired" in run.output, reads_output=False)
    run.fence.poll()
    assert not run.fence.is_done
    assert (run.fence.fenced, gpu_host.free()) == ([4, 5, 6, 7], [2, 3])


WORDS = {
    "slime's": ([b"[gpu_lock_exec] Acquired GPUs: 0,1\n"], [0, 1]),
    "in pieces, with a terminal's end": ([b"x\n[gpu_lock_", b"exec] Acquired GPUs: 2", b",3\r", b"\n"], [2, 3]),
    "with no end yet": ([b"[gpu_lock_exec] Acquired GPUs: 0"], None),
    "quoted by another": ([b"> [gpu_lock_exec] Acquired GPUs: 0\n"], None),
    "of GPUs that the fence holds": ([b"[gpu_lock_exec] Acquired GPUs: 3,4\n"], None),
    "without any GPU": ([b"[gpu_lock_exec] Acquired GPUs: \n"], None),
}


@pytest.mark.parametrize(("chunks", "gpus"), WORDS.values(), ids=WORDS)
def test_the_messages_of_the_lock_script(gpu_host: GpuHost, chunks: list[bytes], gpus: list[int] | None) -> None:
    fence = _fence(gpu_host, Snapshots(4), 2)
    fence.poll()
    for chunk in chunks:
        fence.read_output(chunk)
    assert fence.gpu_ids == gpus
    fence.close()


def test_another_runs_locks_are_not_taken_for_the_jobs(gpu_host: GpuHost) -> None:
    gpu_host.hold(0, 1, CI_TASKS_RUN_DIR="/another/run/01")
    fence = _fence(gpu_host, Snapshots(8), 2)
    fence.poll()
    assert not fence.is_done


# -- waiting and reservations ----------------------------------------------------------------------------------------


def test_the_reasons_to_wait_name_the_holders(job: Callable[..., Job], gpu_host: GpuHost) -> None:
    gpu_host.hold(0, CI_TASKS_RUN_DIR="/runs/batch/03")
    source = Snapshots(4)
    source.see(GpuProcess("GPU-1", 4242, 62464, "python train.py"))
    run = job(source, LockTimings(refresh=0)).begin(3)
    assert run.fence.waiting == []  # it may still pull its image
    run.watch(lambda: run.fence.waiting)
    assert run.fence.waiting == [
        "GPU 0 held by run batch.03 for less than a minute",
        "GPU 1: 61 GiB in use by pid 4242 (python train.py) without a lock",
        "GPUs 4-7 do not exist here",
    ]


def test_a_waiting_job_gets_what_was_reserved_for_it(job: Callable[..., Job], gpu_host: GpuHost) -> None:
    """Two others come and go in turns: eight GPUs are never free at one moment unless they are reserved."""
    low, high = gpu_host.hold(0, 1, 2, 3), gpu_host.hold(4, 5, 6, 7)
    run = job(Snapshots(8)).begin(8)
    run.watch(lambda: "reserving GPUs: 0 of 8 so far" in run.fence.waiting)
    gpu_host.end(low)
    run.watch(lambda: "reserving GPUs: 4 of 8 so far" in run.fence.waiting)
    assert gpu_host.free() == []
    gpu_host.end(high)
    run.watch(lambda: run.fence.is_done)
    assert run.fence.gpu_ids == [0, 1, 2, 3, 4, 5, 6, 7]
    assert run.fence.waiting == []
    assert lock_files.is_free(GpuRequest(8, pattern=gpu_host.pattern).reservation_lock)


def _is_stopped(script: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{script.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_the_script_is_the_first_to_try_when_its_gpus_are_released(job: Callable[..., Job], gpu_host: GpuHost) -> None:
    """It is held still until its sleep is over for certain. Another that tries all the time comes too late."""
    holder = gpu_host.hold(0)
    run = job(Snapshots(8), LockTimings(refresh=0, reserve_after=0, sleep=0.7)).begin(8)
    run.watch(lambda: "reserving GPUs: 7 of 8 so far" in run.fence.waiting)
    assert run.script is not None and not _is_stopped(run.script)
    gpu_host.end(holder)
    run.watch(lambda: run.script is not None and _is_stopped(run.script))
    assert gpu_host.free() == []
    run.watch(lambda: run.fence.is_done)
    assert run.fence.gpu_ids == [0, 1, 2, 3, 4, 5, 6, 7]
    assert not _is_stopped(run.script)


def test_a_paused_script_continues_when_the_fence_is_closed(job: Callable[..., Job], gpu_host: GpuHost) -> None:
    holder = gpu_host.hold(0)
    run = job(Snapshots(8), LockTimings(refresh=0, reserve_after=0, sleep=60)).begin(8)
    run.watch(lambda: run.fence.waiting)
    gpu_host.end(holder)
    run.watch(lambda: run.script is not None and _is_stopped(run.script))
    run.fence.close()
    run.watch(lambda: b"Acquired" in run.output, reads_output=False)


def test_a_paused_script_continues_when_a_gpu_is_lost_meanwhile(job: Callable[..., Job], gpu_host: GpuHost) -> None:
    source, holder = Snapshots(8), gpu_host.hold(0)
    run = job(source, LockTimings(refresh=0, reserve_after=0, sleep=60)).begin(8)
    run.watch(lambda: run.fence.waiting)
    gpu_host.end(holder)
    run.watch(lambda: run.script is not None and _is_stopped(run.script))
    source.see(GpuProcess("GPU-5", 4242, 62464, "python"))
    run.watch(lambda: run.script is not None and not _is_stopped(run.script))
    assert run.fence.fenced == [5]


@pytest.mark.parametrize("visible", [True, False], ids=["with /proc/locks", "without"])
def test_where_another_was_quicker_it_reserves_again(
    gpu_host: GpuHost, until: Until, visible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not visible:
        monkeypatch.setattr(lock_files, "LOCKS", "/no/such/file")
    fence = Fence(
        GpuRequest(8, pattern=gpu_host.pattern),
        str(gpu_host.path),
        Snapshots(8),
        LockTimings(0, 0, 0, 60 if visible else 0.5),
    )
    fence.read_output(WAITS)
    fence.poll()
    assert len(gpu_host.free()) == 8  # reserved, and released at once
    thief = gpu_host.hold(0, 1)
    until(lambda: "reserving GPUs: 6 of 8 so far" in _waiting_after_a_tick(fence))
    gpu_host.end(thief)
    until(lambda: "reserving GPUs: 0 of 8 so far" in _waiting_after_a_tick(fence))
    assert len(gpu_host.free()) == 8
    fence.close()


def test_a_job_that_does_not_wait_keeps_nothing_from_others(gpu_host: GpuHost) -> None:
    gpu_host.hold(0)
    fence = _fence(gpu_host, Snapshots(8), 8)
    for _ in range(3):
        fence.poll()
        fence.read_output(b"Pulling image\n")
    assert gpu_host.free() == [1, 2, 3, 4, 5, 6, 7]
    fence.read_output(WAITS)
    fence.poll()
    assert gpu_host.free() == []
    fence.close()


def test_only_one_run_reserves_at_a_time(gpu_host: GpuHost) -> None:
    gpu_host.hold(0)
    one, other = (_fence(gpu_host, Snapshots(8), 8) for _ in range(2))
    for fence in (one, other):
        fence.read_output(WAITS)
        fence.poll()
    assert one.waiting[-1] == "reserving GPUs: 7 of 8 so far"
    assert not other.reservation.gpus
    one.close()
    other.poll()
    assert other.waiting[-1] == "reserving GPUs: 7 of 8 so far"
    other.close()
    assert gpu_host.free() == [1, 2, 3, 4, 5, 6, 7]


def test_a_reserved_gpu_that_a_process_begins_to_use_stays_fenced_and_does_not_count(gpu_host: GpuHost) -> None:
    holder = gpu_host.hold(0)
    source = Snapshots(8)
    fence = _fence(gpu_host, source, 8)
    fence.read_output(WAITS)
    fence.poll()
    source.see(GpuProcess("GPU-5", 4242, 62464, "python"))
    gpu_host.end(holder)
    fence.poll()
    assert (fence.fenced, fence.waiting[-1]) == ([5], "reserving GPUs: 7 of 8 so far")
    source.see()
    fence.poll()
    assert fence.fenced == []
    assert len(gpu_host.free()) == 8
    fence.close()


def test_a_lock_file_that_cannot_be_used_is_reported_and_ends_nothing(gpu_host: GpuHost) -> None:
    os.mkdir(gpu_host.lock(5))
    fence = _fence(gpu_host, Snapshots(4))
    fence.read_output(WAITS)
    fence.poll()
    assert any("custom_gpu_lock_5.lock" in sentence for sentence in fence.waiting)
    fence.close()
