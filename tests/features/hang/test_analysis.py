"""What is concluded of ranks from NCCL, torch's recorder and stacks; and that no more is claimed than was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.hang import HangFacts, ProcessFacts, RecordedCollective
from ci_tasks.features.hang.analysis import CONTRADICTED, NOT_DETERMINED, SHOWN, analyse_hang, read_ras
from ci_tasks.features.hang.command import hang_lines
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "data/analyses.json")).fixture()
analyse_hang = kept.of(analyse_hang)
read_ras = kept.of(read_ras)
hang_lines = kept.of(hang_lines)

C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
CUDA = "/usr/lib/python3.11/site-packages/torch/cuda/__init__.py"


def rank(number: int, *frames: tuple[str, str, int], cpu: float = 0.0, state: str = "S", size: int = 4) -> ProcessFacts:
    """A rank whose main thread is there, the innermost frame first; its pid is 100 more."""
    lines = "".join(f'  File "{file}", line {line} in {function}\n' for function, file, line in frames)
    return ProcessFacts(
        pid=100 + number,
        ppid=1,
        argv=("python", "train.py"),
        state=state,
        env={"RANK": str(number), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)},
        python=True,
        wchan="futex_do_wait",
        main_cpu=cpu,
        cpu=cpu,
        stacks=f"Current thread 0x1 (most recent call first):\n{lines}",
        same_stacks=True,
    )


def collective(name: str, line: int = 61) -> tuple[tuple[str, str, int], ...]:
    return (
        (name, C10D, 2800),
        ("wrapper", C10D.replace("distributed_c10d", "c10d_logger"), 83),
        ("step", "/job/train.py", line),
    )


def gpu(line: int) -> tuple[tuple[str, str, int], ...]:
    return (("synchronize", CUDA, 1162), ("step", "/job/train.py", line))


QUEUE = (("get", "/usr/lib/python3.11/queue.py", 171), ("next_batch", "/job/loader.py", 88))
CHILD = (("wait", "/usr/lib/python3.11/subprocess.py", 1264), ("fetch", "/job/loader.py", 61))
THREADING = "/usr/lib/python3.11/threading.py"
BARRIER = (("_wait", THREADING, 707), ("wait", THREADING, 668), ("step", "/job/train.py", 61))
IMPORT = (("acquire", "<frozen importlib._bootstrap>", 111), ("load", "/job/loader.py", 3))
RUN = C10D.replace("distributed_c10d", "run")  # by `python -m torch.distributed.run`
MODULE = (("main", RUN, 9), ("<module>", RUN, 99), ("_run_code", "<frozen runpy>", 88))
LOOP = (("tokenize", "/job/loader.py", 12),)


def facts(*processes: ProcessFacts, **more: object) -> HangFacts:
    return replace(HangFacts(processes=processes), **more)  # type: ignore[arg-type]


def recorded(*numbers: int, operations: str = "all_reduce", group: str = "0") -> tuple[RecordedCollective, ...]:
    words = operations.split() * len(numbers)
    return tuple(RecordedCollective(at, words[at], number, group=group) for at, number in enumerate(numbers))


def received(number: int, peer: int) -> RecordedCollective:
    return RecordedCollective(number, f"recv 0<-{peer}", 1, "started")


RAS = "".join(
    f"  Rank {at} has launched up to operation {count} -- GPU {at} managed by process {100 + at} on node n\n"
    for at, count in enumerate((6, 6, 5, 6))
)
# A rank that failed, a process that it had started, and one of the job's step.
DEAD = (
    ProcessFacts(103, 1, env={"RANK": "3"}, end="ValueError: x"),
    ProcessFacts(110, 103, env={"RANK": "3"}, end="it ended by itself"),
    ProcessFacts(99, 1, env={"SLURM_PROCID": "3"}, end="it ended by itself"),
)
# An interpreter that ends.
ENDS = "Current thread 0x67 (most recent call first):"
WAITS = [rank(at, *collective("all_reduce")) for at in range(3)]
SLEEPS = ProcessFacts(9, 103, argv=("sleep", "9"), state="S")
TRACKER = ProcessFacts(8, 103, argv=("python", "-c", "from multiprocessing.resource_tracker import main"), state="S")
NVCC = ProcessFacts(9, 100, argv=("cc1plus",), state="R", main_cpu=1.0, cpu=1.0)
DRIVER = replace(rank(0, *CHILD), pid=9, env={}, wchan="do_wait")
ALL = [rank(at, *gpu(61), cpu=1.0) for at in range(4)]


LOADER = (
    ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
    ("__next__", C10D.replace("distributed/distributed_c10d", "utils/data/dataloader"), 701),
    ("step", "/job/train.py", 9),
)
READS = ("__getitem__", "/job/data.py", 5)


def worker(pid: int, *frames: tuple[str, str, int]) -> ProcessFacts:
    """A forked worker of rank 3: below its start are the frames that it was forked in."""
    start = ("_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314)
    loop = ("_worker_loop", C10D.replace("distributed/distributed_c10d", "utils/data/_utils/worker"), 349)
    return replace(rank(3, *frames, loop, start, *LOADER[1:]), pid=pid, ppid=103)


def states(*words: str) -> tuple[RecordedCollective, ...]:
    return tuple(RecordedCollective(at, "all_reduce", 6, word) for at, word in enumerate(words))


def few(count: int) -> list[ProcessFacts]:
    """All ranks of a smaller job."""
    return [rank(at, *gpu(61), cpu=1.0, size=count) for at in range(count)]


@pytest.mark.parametrize(
    ("seen", "kind", "named", "words"),
    [
        (facts(*WAITS, rank(3, *QUEUE), collectives=recorded(412, 412, 412)), "rank waits elsewhere", [3],
         "rank 3 waits in queue.get at loader.py:88, in next_batch; ranks 0-2 wait in all_reduce number 412 ("),
        (facts(*ALL, ras={"": RAS}), "collectives differ", [2], "for earlier work on its GPU: a kernel that does not"),
        (facts(*ALL, collectives=recorded(6, 6, 5, 6)), "collectives differ", [2], "torch's flight recorder"),
        (facts(*few(2), collectives=recorded(6, 6, operations="all_reduce all_gather")), "collectives differ", [0, 1],
         "rank 0 waits in all_reduce number 6 (synchronize at train.py:61, in step)"),
        (facts(*few(3), collectives=(received(0, 1), received(1, 2), received(2, 0))), "kernel", [],
         "none is seen to be behind"),
        (facts(*ALL[:3], rank(3, *QUEUE), collectives=recorded(412, 412, 412)), "rank waits elsewhere", [3],
         "ranks 0-2 wait in all_reduce number 412 (synchronize at train.py:61"),
        # A barrier of threads has no number: that of the recorder is of the collective before it.
        (facts(*(rank(at, *BARRIER) for at in range(3)), rank(3, *QUEUE), collectives=recorded(412, 412, 412)),
         "rank waits elsewhere", [3], "ranks 0-2 wait in threading.wait at train.py:61"),
        (facts(*ALL[:3], rank(3, *LOOP, cpu=0.9)), "straggler", [3], "rank 3 still computes: tokenize at loader.py:12"),
        (facts(*ALL[:3], gone=DEAD), "dead rank", [3],
         "rank 3 is gone (rank 3: ValueError: x); ranks 0-2 wait in synchronize"),
        (facts(*ALL[:3], rank(3, *gpu(61), state="T")), "stopped", [3], "rank 3 is stopped"),
        (facts(*ALL[:3], replace(rank(3, *gpu(61), state="D"), held=("nfs_wait",))), "uninterruptible", [3],
         "rank 3 is in uninterruptible sleep (state D, nfs_wait; synchronize at train.py:61, in step): a disk"),
        (facts(*ALL[:3], replace(rank(3, *gpu(61)), held=("",))), "uninterruptible", [3],
         "rank 3 has a thread in uninterruptible sleep (state D; synchronize at"),
        (facts(*ALL[:3], rank(3, *gpu(61), state="D")), "kernel", [], "none is seen to be behind"),  # it reads a file
        (facts(*(rank(at, *collective("broadcast" if at == 1 else "all_reduce")) for at in range(4))),
         "collectives differ", [1], "broadcast"),
        (facts(*WAITS, rank(3, *CHILD), TRACKER, SLEEPS), "rank waits elsewhere", [3, None],
         "rank 3 waits in subprocess.wait"),
        (facts(rank(0, *LOOP, cpu=1.0, size=1)), "computes", [0], "in both looks: an endless loop, or slow work"),
        (facts(rank(0, *QUEUE, size=1)), "queue", [0], "rank 0 waits in queue.get at loader.py:88"),
        (facts(rank(0, *IMPORT, size=1)), "import", [0], "rank 0 waits in import at loader.py:3"),
        (facts(rank(0, *QUEUE[1:], size=1), lines={"/job/loader.py:88": "with lock:"}), "lock", [0], "in with lock at"),
        # Through a process that waits for its child.
        (facts(DRIVER, replace(rank(0, *QUEUE, size=1), ppid=9)), "child", [0],
         "waits for rank 0: subprocess.wait at loader.py:61, in fetch; rank 0: waits in queue.get at loader.py:88"),
        # A kernel that does not end: by the collective that has not started, by the GPU that works, or of none shown.
        (facts(*few(2), collectives=states("scheduled", "started")), "kernel", [0],
         "the GPU of rank 0 still works before all_reduce number 6, which the others are in: a kernel that does not"),
        # A DataLoader's worker: the busy one, by the frames after its start.
        (facts(*WAITS, rank(3, *LOADER), worker(7, READS), worker(8)), "rank waits elsewhere", [3, None],
         "rank 3 waits for train.py (pid 7, below rank 3): __getitem__ at data.py:5"),
        # Claims that stacks alone do not carry.
        (facts(*ALL[:3], rank(3, *gpu(99))), "kernel", [], "a kernel that does not end, or slow work"),
        (facts(*ALL[:3], replace(rank(3, cpu=0.7), stacks=ENDS)), "", [], "not determined"),
        (facts(*(rank(at, *collective("recv" if at == 3 else "all_reduce")) for at in range(4))), "", [],
         "not determined"),
        (facts(), "", [], "no process was seen"),
        (facts(rank(0, *MODULE, size=1)), "", [], "rank 0: main"),
    ],
)  # fmt: skip
def test_ranks(seen: HangFacts, kind: str, named: list[int], words: str) -> None:
    hang = analyse_hang(seen)
    assert (hang.kind, [culprit.rank for culprit in hang.culprits]) == (kind, named), hang.reason
    assert words in hang.reason


@pytest.mark.parametrize(("dead", "pid"), [(DEAD, 103), ((), None)])
def test_a_rank_that_is_gone_has_the_pid_that_the_probe_saw(dead: tuple[ProcessFacts, ...], pid: int | None) -> None:
    assert [culprit.pid for culprit in analyse_hang(facts(*ALL[:3], gone=dead)).culprits] == [pid]


MOVES: dict[str, Any] = {
    "stacks": 'Current thread 0x1 (most recent call first):\n  File "/job/loader.py", line 12 in tokenize\n',
    "same_stacks": False,
}


@pytest.mark.parametrize(
    ("processes", "outcome", "words"),
    [
        # All wait for their GPUs, and use their processors for that.
        ([*ALL[:3], rank(3, *QUEUE)], SHOWN, "rank 3 waits in queue.get"),
        # One computes, and the others wait for it.
        ([*WAITS, replace(rank(3, cpu=1.0), **MOVES)], CONTRADICTED, "the log is silent, but rank 3 continues"),
        ([*WAITS, rank(3, *LOOP, cpu=1.0)], NOT_DETERMINED,
         "rank 3 computes (tokenize at loader.py:12): slow work, or an endless loop"),
        # Another thread of it computes.
        ([*WAITS, replace(rank(3, *QUEUE), cpu=0.13)], CONTRADICTED, "the log is silent, but rank 3 continues"),
        ([*WAITS, replace(rank(3, *QUEUE), cpu=0.01)], SHOWN, "rank 3 waits in queue.get"),
        # A child that is no Python, as a compiler.
        ([rank(0, *QUEUE, size=1), NVCC], NOT_DETERMINED, "cc1plus (pid 9, below rank 0) computes (state R): slow"),
        # That a rank is gone, or stopped, shows a hang, whoever computes.
        ([*ALL[:2], replace(rank(3, cpu=1.0), **MOVES)], SHOWN, "rank 2 is gone"),
    ],
)  # fmt: skip
def test_whoever_computes_while_the_log_is_silent_has_not_stalled(
    processes: list[ProcessFacts], outcome: str, words: str
) -> None:
    hang = analyse_hang(facts(*processes, reason="stall"))
    assert (hang.outcome, words in hang.reason) == (outcome, True), hang.reason


def test_a_shell_whose_children_come_and_go_is_no_hang() -> None:
    """Only processes of both looks are seen: the child that the last shell waits for is another one by then."""
    shells = [ProcessFacts(pid, pid - 1, argv=("bash",), state="S", wchan="do_wait") for pid in (8, 9)]
    hang = analyse_hang(facts(*shells))
    assert hang.outcome == NOT_DETERMINED, hang.reason


def test_the_answer_names_groups_and_what_could_not_be_had() -> None:
    seen = facts(*ALL[:3], rank(3, *QUEUE), could_not=("NCCL: no answer",))
    lines = hang_lines(analyse_hang(seen), "b.01", "/runs/b/01/hang/stacks.txt")
    assert lines[0] == "b.01: shown, rank waits elsewhere"


def test_nccl_says_which_rank_is_behind_unless_two_communicators_contradict_each_other() -> None:
    assert read_ras(f"MISMATCH\n{RAS}") == {100: 6, 101: 6, 102: 5, 103: 6}
    assert read_ras(RAS + RAS.replace("operation 6", "operation 4")) == {}
