"""The reason of a failure whose end is known."""

from __future__ import annotations

import pytest

from ci_tasks.agent.probe.evidence import LinkedException, NotedException, ProcessEvidence, RunEvidence
from ci_tasks.logs.causes import JobEnd, JobKnowledge
from ci_tasks.logs.triage.log_triage import analyse, triage

TIMEOUT = JobEnd("timeout", 143, timeout_minutes=90)
FULL = [b"OSError: [Errno 28] No space left on device\n"]


def test_what_ran_into_its_timeout_hangs_unless_the_log_knows_better() -> None:
    silent = analyse([b"step 1\n"], TIMEOUT)
    assert (silent.cause, silent.verdict, silent.line) == ("timeout_hang", "failed", "step 1")
    assert silent.reason == "it did not end within 90 min"
    assert silent.signature == analyse([b"step 2\n"], TIMEOUT).signature
    assert analyse(FULL, TIMEOUT) == triage(FULL, 143) and triage(FULL, 143).cause == "disk_full"
    assert analyse([b"step 1\n"], JobEnd("exit", 1)) == triage([b"step 1\n"], 1), "another end is read from the log"


@pytest.mark.parametrize("line", ["run.sh: line 8: 28 Killed  python3 train.py", "RuntimeError: exit code: -9"])
def test_a_kill_is_the_kernels_for_memory_only_if_the_kernel_killed_a_process(line: str) -> None:
    log = [f"{line}\n".encode()]
    for oom_kills in (None, 1):
        assert analyse(log, JobEnd("exit", 137, oom_kills=oom_kills)).cause == "host_oom_killed"
    result = analyse(log, JobEnd("exit", 137, oom_kills=0))
    assert (result.cause, result.group, result.verdict, result.line) == ("unknown", "unknown", "failed", line)
    assert "not by the kernel" in result.reason


def test_what_the_timeout_itself_makes_a_job_print_is_no_reason() -> None:
    died = "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."
    log = [f'Traceback (most recent call last):\n  File "/x/run.py", line 3, in main\n    call()\n{died}\n'.encode()]
    assert triage(log, 143).rule == "killed-child"
    assert analyse(log, TIMEOUT).cause == "timeout_hang"


NCCL = (
    "torch.distributed.DistBackendError",
    "NCCL error in: x.cpp:1, remote process exited or there was a network error",
)
LOST = "rank 1 (pid 101) alone ended without an end mark, as what is killed does"


def rank(
    number: int, end: str = "exit", *raised: str, at: float = 1.0, parent: int = 1, pid: int = 0
) -> ProcessEvidence:
    chain = (LinkedException(raised[0], raised[1]),) if raised else ()
    exceptions, pid, env = (NotedException(at, chain=chain),) * bool(raised), pid or 100 + number, {"RANK": str(number)}
    return ProcessEvidence(
        pid=pid, start=pid, ppid=parent, parent_start=parent, env=env, end=end, exceptions=exceptions
    )


FIRST = [
    ("two exceptions", [rank(0, "exit", "ValueError", "a", at=5), rank(1, "exit", "KeyError", "b", at=4)],
     "rank 1 (pid 101) ended first, with KeyError"),
    ("an exception, and the others are stopped for it", [rank(0, "exit", "ValueError", "a"), rank(1, ""), rank(2, "")],
     "rank 0 (pid 100) ended first, with ValueError"),
    ("killed, and the other loses it", [rank(0, "exit", *NCCL), rank(1, "")], LOST),
    ("killed, and the other ends", [rank(0), rank(1, "")], LOST),
    ("one rank", [rank(0, "exit", "ValueError", "a")], ""),
    ("two groups of the same ranks", [rank(0), rank(1, ""), rank(0, "", pid=7), rank(1, pid=8)], ""),
]  # fmt: skip


@pytest.mark.parametrize(("processes", "first"), [row[1:] for row in FIRST], ids=[row[0] for row in FIRST])
def test_the_rank_that_ended_first_is_named_before_what_the_log_says(
    processes: list[ProcessEvidence], first: str
) -> None:
    known = JobKnowledge(RunEvidence(processes=tuple(processes)))
    without = analyse(FULL, JobEnd("exit", 1)).reason
    reason = analyse(FULL, JobEnd("exit", 1), known).reason
    assert without and reason.endswith(without)
    assert reason.startswith(first) if first else reason == without
    assert analyse(FULL, TIMEOUT, known).reason == without, "a timeout kills them all"
    assert analyse([b"ok\n"], JobEnd("exit", 0), known).reason == ""
