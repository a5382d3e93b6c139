"""What Slurm's programs say, read as each wrote it, and the outcome of a run by its job's state; see states.py."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent import run_directory
from ci_tasks.agent.records import Status
from ci_tasks.agent.slurm import states
from ci_tasks.agent.slurm.states import UNKNOWN, SlurmJobState, claimed_code, job_outcome


@pytest.mark.parametrize(
    ("state", "over", "on_node"),
    [
        ("PENDING", False, False),
        ("RUNNING", False, True),
        ("COMPLETING", False, True),
        ("A_STATE_OF_TOMORROW", False, False),
        ("COMPLETED", True, False),
        ("PREEMPTED", True, False),
        (states.UNKNOWN, True, False),
    ],
)
def test_only_known_terminal_states_are_over(state: str, over: bool, on_node: bool) -> None:
    assert (SlurmJobState(state).is_over, SlurmJobState(state).is_on_node) == (over, on_node)


def test_sacct_says_who_cancelled() -> None:
    output = states.parse_sacct(
        "10|CANCELLED by 1000|0:15|gpu1\n11|OUT_OF_MEMORY|0:125|gpu2\n12|CANCELLED||None assigned\n"
    )
    assert output == {
        "10": SlurmJobState("CANCELLED", node="gpu1", by="1000", exit_code=143),
        "11": SlurmJobState("OUT_OF_MEMORY", node="gpu2", exit_code=253),
        "12": SlurmJobState("CANCELLED"),
    }


@pytest.mark.parametrize(
    ("squeue", "others", "code"),
    [
        ("0", "0:0", 0),
        ("1024", "4:0", 4),
        ("35072", "137:0", 137),
        ("9", "0:9", 137),
        ("4:0", "4:0", 4),
        ("", "", None),
    ],
)
def test_an_exit_code_is_read_as_each_program_prints_it(squeue: str, others: str, code: int | None) -> None:
    """22.05's squeue prints what wait(2) gave."""
    queued = states.parse_squeue(f"10|FAILED|N/A|gpu1|{squeue}|NonZeroExitCode|\n")["10"]
    assert queued.exit_code == code
    assert states.parse_sacct(f"10|FAILED|{others}|gpu1\n")["10"].exit_code == code


def test_a_job_that_goes_on_has_no_exit_code_yet() -> None:
    assert states.parse_squeue("10|COMPLETING|N/A|gpu1|0|None|\n")["10"].exit_code is None


# -- outcomes --------------------------------------------------------------------------------------------------------

WAITS = Status("running", "waiting")
BEGUN = Status("running", pid=1, boot_id="b")
CUT = Status("ended", pid=1, boot_id="b", end="cancelled")
KEPT = "the agent's status"


@pytest.mark.parametrize(
    ("slurm", "status", "end", "code"),
    [
        # A signal ended it: the agent cannot know why, Slurm does.
        ("TIMEOUT", CUT, run_directory.END_TIMEOUT, None),
        ("DEADLINE", BEGUN, run_directory.END_TIMEOUT, None),
        ("CANCELLED", CUT, run_directory.END_CANCELLED, None),
        ("PREEMPTED", CUT, run_directory.END_EXIT, 125),
        ("OUT_OF_MEMORY", BEGUN, run_directory.END_EXIT, 137),
        ("NODE_FAIL", BEGUN, None, None),
        ("BOOT_FAIL", WAITS, run_directory.END_EXIT, 125),
        # Nothing of Slurm's ended it.
        ("FAILED", CUT, KEPT, None),
        ("COMPLETED", CUT, KEPT, None),
        # The batch script ended without the agent's status.
        ("FAILED", BEGUN, None, None),
        ("FAILED", WAITS, run_directory.END_EXIT, 125),
        # Nobody knows it any more.
        (UNKNOWN, BEGUN, None, None),
        (UNKNOWN, WAITS, None, None),
        (UNKNOWN, CUT, None, None),
        # Cancelled before it began.
        ("CANCELLED", WAITS, run_directory.END_CANCELLED, None),
    ],
)
def test_slurm_decides_how_an_interrupted_run_ended(slurm: str, status: Any, end: str | None, code: int | None) -> None:
    outcome = job_outcome(SlurmJobState(slurm, node="gpu1"), status, "python3: command not found")
    if end == KEPT:
        assert outcome is None
    else:
        assert outcome is not None
        assert (outcome[0], outcome[2]) == (end, code)


@pytest.mark.parametrize(
    ("end", "code", "slurms", "is_claimed"),
    [
        ("exit", 0, 0, False),
        ("exit", 0, 4, True),
        ("exit", 3, 0, True),
        ("exit", 125, 4, True),
        ("exit", 137, 137, False),
        ("exit", 137, 9, False),  # as sacct has it
        ("cancelled", None, 130, False),
        ("cancelled", None, 4, True),
        ("timeout", None, 124, False),
        ("error", None, 1, False),
        ("exit", 0, None, False),
    ],
)
def test_a_status_claims_what_its_batch_script_did_not_exit_with(
    end: Any, code: int | None, slurms: int | None, is_claimed: bool
) -> None:
    status = Status(state="ended", end=end, exit_code=code)
    state = SlurmJobState("FAILED" if slurms else "COMPLETED", exit_code=slurms)
    assert (claimed_code(state, status) is not None) is is_claimed
