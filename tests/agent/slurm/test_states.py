"""What Slurm's programs say, read: squeue and sacct, each as the program wrote it."""

from __future__ import annotations

import pytest

from ci_tasks.agent.slurm import states
from ci_tasks.agent.slurm.states import SlurmJobState


@pytest.mark.parametrize(
    ("state", "over", "on_node"),
    [
        ("PENDING", False, False),
        ("CONFIGURING", False, False),
        ("RUNNING", False, True),
        ("COMPLETING", False, True),
        ("REQUEUE_HOLD", False, False),
        ("A_STATE_OF_TOMORROW", False, False),
        ("COMPLETED", True, False),
        ("PREEMPTED", True, False),
        ("OUT_OF_MEMORY", True, False),
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
