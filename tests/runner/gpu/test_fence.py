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

from ci_tasks.runner import process
from ci_tasks.runner.gpu import holders, locks
from ci_tasks.runner.gpu.fence import Fence
from ci_tasks.runner.gpu.gpus import App, Gpu, Sight
from ci_tasks.runner.gpu.request import Request
from ci_tasks.runner.gpu.turn import Pace

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox

Until = Callable[..., Any]
SCRIPT = Path(__file__).parents[3] / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
QUICK = Pace(refresh=0, turn_after=0, sleep=1)
WAITS = b"[gpu_lock_exec] try_acquire_count failed, sleep and retry (only got: [0])\n"


class Looking:
    """What the last look showed."""

    problem = ""

    def __init__(self, count: int) -> None:
        self.count = count
        self.latest: Sight | None = None
        self.see()

    def see(self, *apps: App) -> None:
        gpus = tuple(Gpu(at, f"GPU-{at}", "H200", "580", 4, 143771) for at in range(self.count))
        self.latest = Sight(gpus, apps)


class Job:
    """A run whose job is the sample's lock script, with the fence that goes with it."""

    def __init__(self, box: GpuBox, run_dir: Path, looking: Looking, pace: Pace) -> None:
        self.box, self.run_dir = box, run_dir
        self.fence: Fence
        self.pace, self.looking = pace, looking
        self.said = b""
        self.script: subprocess.Popen[bytes] | None = None

    def begin(self, count: int, marked: bool = True) -> Job:
        self.fence = Fence(Request(count, pattern=self.box.pattern), str(self.run_dir), self.looking, self.pace)
        self.fence.tick()
        environ = {**os.environ, "CI_TASKS_GPU_LOCK_DIR": str(self.box.path)}
        if marked:
            environ["CI_TASKS_RUN_DIR"] = str(self.run_dir)
        self.script = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--count", str(count), "--", "sleep", "300"],
            stdout=subprocess.PIPE,
            env=environ,
        )
        return self

    def watch(self, until: Callable[[], Any], hears: bool = True) -> Job:
        """As the supervisor does: tick, and hear what the job says."""
        assert self.script is not None and self.script.stdout is not None
        deadline = time.monotonic() + 30
        with selectors.DefaultSelector() as selector:
            selector.register(self.script.stdout, selectors.EVENT_READ)
            while not until():
                assert time.monotonic() < deadline, (self.fence.waiting, self.said)
                self.fence.tick()
                for _ in selector.select(0.02):
                    chunk = os.read(self.script.stdout.fileno(), 7)
                    self.said += chunk
                    if hears:
                        self.fence.hear(chunk)
        return self

    def end(self) -> None:
        self.fence.close()
        if self.script is not None:
            self.script.send_signal(signal.SIGTERM)
            self.script.send_signal(signal.SIGCONT)
            self.script.communicate()
            process.kill_all(str(self.run_dir), None)


@pytest.fixture
def job(box: GpuBox, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(looking: Looking, pace: Pace = QUICK) -> Job:
        run_dir = tmp_path / f"run-{len(made)}"
        run_dir.mkdir()
        made.append(Job(box, run_dir, looking, pace))
        return made[-1]

    yield make
    for job in made:
        job.end()


def _waiting_after_a_tick(fence: Fence) -> list[str]:
    fence.tick()
    return fence.waiting


def _fence(box: GpuBox, looking: Looking, count: int = 1) -> Fence:
    return Fence(Request(count, pattern=box.pattern), str(box.path / "run"), looking, QUICK)


# -- what is fenced --------------------------------------------------------------------------------------------------


def test_gpus_that_do_not_exist_are_kept_from_the_job_until_it_has_its_own(
    job: Callable[..., Job], box: GpuBox
) -> None:
    holder = box.hold(0)
    run = job(Looking(3)).begin(2)
    assert box.free() == [1, 2]
    run.watch(lambda: run.fence.done)
    assert run.fence.gpu_ids == [1, 2]
    assert box.free() == [3, 4, 5, 6, 7]
    box.end(holder)


def test_a_gpu_that_is_used_without_a_lock_is_kept_until_it_is_free(box: GpuBox) -> None:
    looking = Looking(8)
    looking.see(App("GPU-0", 4242, 62464, "python"))
    fence = _fence(box, looking)
    fence.tick()
    assert (fence.fenced, box.free()) == ([0], [1, 2, 3, 4, 5, 6, 7])
    looking.see()
    fence.tick()
    assert (fence.fenced, box.free()) == ([], [0, 1, 2, 3, 4, 5, 6, 7])


def test_a_gpu_whose_user_has_its_lock_is_none_of_the_fences_business(box: GpuBox) -> None:
    holder = box.hold(0)
    looking = Looking(8)
    looking.see(App("GPU-0", holder.pid, 62464, "python"))
    fence = _fence(box, looking)
    fence.tick()
    assert fence.fenced == []
    box.end(holder)  # gone, but its children still compute
    fence.tick()
    assert fence.fenced == [0]
    fence.close()


def test_fences_of_several_runs_leave_no_gap(box: GpuBox) -> None:
    one, other = _fence(box, Looking(4)), _fence(box, Looking(4))
    one.tick()
    other.tick()
    one.close()
    assert box.free() == [0, 1, 2, 3]
    other.close()
    assert box.free() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_free_gpu_is_never_kept_by_a_fence_without_a_turn(box: GpuBox) -> None:
    fence = _fence(box, Looking(8), 8)
    box.hold(0)
    fence.tick()
    assert box.free() == [1, 2, 3, 4, 5, 6, 7]


# -- how its end is seen ---------------------------------------------------------------------------------------------


def test_the_jobs_locks_are_seen_although_its_words_are_not(job: Callable[..., Job]) -> None:
    run = job(Looking(4)).begin(2)
    run.watch(lambda: run.fence.done, hears=False)
    assert run.fence.gpu_ids == [0, 1]


def test_the_jobs_words_are_read_where_its_processes_cannot_be_told(job: Callable[..., Job]) -> None:
    run = job(Looking(4)).begin(2, marked=False)
    run.watch(lambda: run.fence.done)
    assert run.fence.gpu_ids == [0, 1]


def test_where_nothing_can_be_seen_the_fence_stays_up_and_takes_no_turn(
    job: Callable[..., Job], box: GpuBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LOCKS", "/no/such/file")
    run = job(Looking(4)).begin(2)
    run.watch(lambda: b"Acquired" in run.said, hears=False)
    run.fence.tick()
    assert not run.fence.done
    assert (run.fence.fenced, box.free()) == ([4, 5, 6, 7], [2, 3])


WORDS = {
    "slime's": ([b"[gpu_lock_exec] Acquired GPUs: 0,1\n"], [0, 1]),
    "in pieces, with a terminal's end": ([b"x\n[gpu_lock_", b"exec] Acquired GPUs: 2", b",3\r", b"\n"], [2, 3]),
    "with no end yet": ([b"[gpu_lock_exec] Acquired GPUs: 0"], None),
    "quoted by another": ([b"> [gpu_lock_exec] Acquired GPUs: 0\n"], None),
    "of GPUs that the fence holds": ([b"[gpu_lock_exec] Acquired GPUs: 3,4\n"], None),
    "without any GPU": ([b"[gpu_lock_exec] Acquired GPUs: \n"], None),
}


@pytest.mark.parametrize(("chunks", "gpus"), WORDS.values(), ids=WORDS)
def test_the_words_of_the_lock_script(box: GpuBox, chunks: list[bytes], gpus: list[int] | None) -> None:
    fence = _fence(box, Looking(4), 2)
    fence.tick()
    for chunk in chunks:
        fence.hear(chunk)
    assert fence.gpu_ids == gpus
    fence.close()


def test_another_runs_locks_are_not_taken_for_the_jobs(box: GpuBox) -> None:
    box.hold(0, 1, CI_TASKS_RUN_DIR="/another/run/01")
    fence = _fence(box, Looking(8), 2)
    fence.tick()
    assert not fence.done


# -- waiting and turns -----------------------------------------------------------------------------------------------


def test_who_waits_sees_who_holds_what(job: Callable[..., Job], box: GpuBox) -> None:
    box.hold(0, CI_TASKS_RUN_DIR="/runs/batch/03")
    looking = Looking(4)
    looking.see(App("GPU-1", 4242, 62464, "python train.py"))
    run = job(looking, Pace(refresh=0)).begin(3)
    assert run.fence.waiting == []  # it may still pull its image
    run.watch(lambda: run.fence.waiting)
    assert run.fence.waiting == [
        "GPU 0 held by run batch.03 for less than a minute",
        "GPU 1: 61 GiB in use by pid 4242 (python train.py) without a lock",
        "GPUs 4-7 do not exist here",
    ]


def test_a_waiting_job_gets_what_was_collected_for_it(job: Callable[..., Job], box: GpuBox) -> None:
    """Two others come and go in turns: eight GPUs are never free at one moment unless somebody collects them."""
    low, high = box.hold(0, 1, 2, 3), box.hold(4, 5, 6, 7)
    run = job(Looking(8)).begin(8)
    run.watch(lambda: "collecting: 0 of 8 so far" in run.fence.waiting)
    box.end(low)
    run.watch(lambda: "collecting: 4 of 8 so far" in run.fence.waiting)
    assert box.free() == []
    box.end(high)
    run.watch(lambda: run.fence.done)
    assert run.fence.gpu_ids == [0, 1, 2, 3, 4, 5, 6, 7]
    assert run.fence.waiting == []
    assert locks.is_free(Request(8, pattern=box.pattern).turn)


def _is_stopped(script: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{script.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_the_script_is_the_first_to_try_when_its_gpus_are_let_go(job: Callable[..., Job], box: GpuBox) -> None:
    """It is held still until its sleep is over for certain. Another that tries all the time comes too late."""
    holder = box.hold(0)
    run = job(Looking(8), Pace(refresh=0, turn_after=0, sleep=0.7)).begin(8)
    run.watch(lambda: "collecting: 7 of 8 so far" in run.fence.waiting)
    assert run.script is not None and not _is_stopped(run.script)
    box.end(holder)
    run.watch(lambda: run.script is not None and _is_stopped(run.script))
    assert box.free() == []
    run.watch(lambda: run.fence.done)
    assert run.fence.gpu_ids == [0, 1, 2, 3, 4, 5, 6, 7]
    assert not _is_stopped(run.script)


def test_a_script_that_is_held_goes_on_when_the_fence_is_closed(job: Callable[..., Job], box: GpuBox) -> None:
    holder = box.hold(0)
    run = job(Looking(8), Pace(refresh=0, turn_after=0, sleep=60)).begin(8)
    run.watch(lambda: run.fence.waiting)
    box.end(holder)
    run.watch(lambda: run.script is not None and _is_stopped(run.script))
    run.fence.close()
    run.watch(lambda: b"Acquired" in run.said, hears=False)


def test_a_script_that_is_held_goes_on_when_a_gpu_is_lost_meanwhile(job: Callable[..., Job], box: GpuBox) -> None:
    looking, holder = Looking(8), box.hold(0)
    run = job(looking, Pace(refresh=0, turn_after=0, sleep=60)).begin(8)
    run.watch(lambda: run.fence.waiting)
    box.end(holder)
    run.watch(lambda: run.script is not None and _is_stopped(run.script))
    looking.see(App("GPU-5", 4242, 62464, "python"))
    run.watch(lambda: run.script is not None and not _is_stopped(run.script))
    assert run.fence.fenced == [5]


@pytest.mark.parametrize("visible", [True, False], ids=["with /proc/locks", "without"])
def test_where_another_was_quicker_it_collects_again(
    box: GpuBox, until: Until, visible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not visible:
        monkeypatch.setattr(locks, "LOCKS", "/no/such/file")
    fence = Fence(Request(8, pattern=box.pattern), str(box.path), Looking(8), Pace(0, 0, 0, 60 if visible else 0.5))
    fence.hear(WAITS)
    fence.tick()
    assert len(box.free()) == 8  # collected, and let go at once
    thief = box.hold(0, 1)
    until(lambda: "collecting: 6 of 8 so far" in _waiting_after_a_tick(fence))
    box.end(thief)
    until(lambda: "collecting: 0 of 8 so far" in _waiting_after_a_tick(fence))
    assert len(box.free()) == 8
    fence.close()


def test_a_job_that_does_not_say_that_it_waits_keeps_nothing_from_others(box: GpuBox) -> None:
    box.hold(0)
    fence = _fence(box, Looking(8), 8)
    for _ in range(3):
        fence.tick()
        fence.hear(b"Pulling image\n")
    assert box.free() == [1, 2, 3, 4, 5, 6, 7]
    fence.hear(WAITS)
    fence.tick()
    assert box.free() == []
    fence.close()


def test_only_one_collects_at_a_time(box: GpuBox) -> None:
    box.hold(0)
    one, other = (_fence(box, Looking(8), 8) for _ in range(2))
    for fence in (one, other):
        fence.hear(WAITS)
        fence.tick()
    assert one.waiting[-1] == "collecting: 7 of 8 so far"
    assert not other._turn.collected
    one.close()
    other.tick()
    assert other.waiting[-1] == "collecting: 7 of 8 so far"
    other.close()
    assert box.free() == [1, 2, 3, 4, 5, 6, 7]


def test_a_collected_gpu_that_somebody_begins_to_use_stays_fenced_and_does_not_count(box: GpuBox) -> None:
    holder = box.hold(0)
    looking = Looking(8)
    fence = _fence(box, looking, 8)
    fence.hear(WAITS)
    fence.tick()
    looking.see(App("GPU-5", 4242, 62464, "python"))
    box.end(holder)
    fence.tick()
    assert (fence.fenced, fence.waiting[-1]) == ([5], "collecting: 7 of 8 so far")
    looking.see()
    fence.tick()
    assert fence.fenced == []
    assert len(box.free()) == 8
    fence.close()


def test_a_fence_that_is_closed_while_it_collects_leaves_nothing(box: GpuBox) -> None:
    box.hold(0)
    fence = _fence(box, Looking(4), 4)
    fence.hear(WAITS)
    fence.tick()
    assert box.free() == []
    fence.close()
    assert box.free() == [1, 2, 3, 4, 5, 6, 7]
    assert locks.is_free(Request(1, pattern=box.pattern).turn)


def test_a_lock_file_that_cannot_be_used_is_told_and_ends_nothing(box: GpuBox) -> None:
    os.mkdir(box.lock(5))
    fence = _fence(box, Looking(4))
    fence.hear(WAITS)
    fence.tick()
    assert any("custom_gpu_lock_5.lock" in sentence for sentence in fence.waiting)
    fence.close()


def test_processes_of_the_run_are_told_by_their_mark_alone(box: GpuBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in a container of another user cannot be told: nobody's locks are then taken for the job's."""
    monkeypatch.setattr(holders, "_PROC", "/no/such")
    box.hold(0, 1, CI_TASKS_RUN_DIR=str(box.path / "run"))
    fence = _fence(box, Looking(8), 2)
    fence.tick()
    assert not fence.done
