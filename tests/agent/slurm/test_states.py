"""What Slurm's programs say, read: squeue, sacct and the completion log, each as the program wrote it."""

from __future__ import annotations

import pytest

from ci_tasks.agent.slurm import states
from ci_tasks.agent.slurm.states import SlurmJobState

SQUEUE = """\
10|RUNNING|2026-11-21T18:24:47|gpu1|0|None|
11|PENDING|2026-11-21T18:30:00||0|Resources|
12|PENDING|N/A||0|QOSMaxGRESPerUser|
13|PENDING|N/A||0|Nodes required for job are DOWN, DRAINED or reserved|
14|NODE_FAIL|2026-11-21T18:24:47|gpu2|256|NodeDown|
"""
JOBCOMP = """\
JobId=2 UserId=root(0) Name=x JobState=PENDING Partition=main NodeList=gpu1
JobId=3 UserId=root(0) Name=x JobState=CANCELLED Partition=main NodeList=gpu1
JobId=2 UserId=root(0) Name=x JobState=TIMEOUT Partition=main NodeList=gpu2
JobId=4 UserId=ro"""


@pytest.mark.parametrize(
    ("job", "description"),
    [
        ("10", "Slurm: RUNNING on gpu1"),
        ("11", "Slurm: PENDING (Resources), expected to start at 2026-11-21 18:30:00"),
        ("12", "Slurm: PENDING (QOSMaxGRESPerUser)"),
        ("13", "Slurm: PENDING (Nodes required for job are DOWN, DRAINED or reserved)"),
        ("14", "Slurm: NODE_FAIL (NodeDown) on gpu2"),
    ],
)
def test_a_job_of_squeue_has_a_description(job: str, description: str) -> None:
    assert states.parse_squeue(SQUEUE)[job].description == description


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
    logged = states.parse_completion_log(f"JobId=10 JobState=FAILED ExitCode={others} \n")
    assert queued.exit_code == logged["10"].exit_code == code
    assert states.parse_sacct(f"10|FAILED|{others}|gpu1\n")["10"].exit_code == code


def test_a_job_that_goes_on_has_no_exit_code_yet() -> None:
    assert states.parse_squeue("10|COMPLETING|N/A|gpu1|0|None|\n")["10"].exit_code is None


def test_of_a_requeued_job_the_completion_log_s_last_line_counts_and_half_a_line_does_not() -> None:
    assert states.parse_completion_log(JOBCOMP) == {
        "2": SlurmJobState("TIMEOUT", node="gpu2"),
        "3": SlurmJobState("CANCELLED", node="gpu1"),
    }


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ("JobCompLoc = /var/log/slurm/jobcomp.log\nJobCompType   = jobcomp/filetxt\n", "/var/log/slurm/jobcomp.log"),
        ("JobCompLoc = slurm_jobcomp_db\nJobCompType   = jobcomp/mysql\n", ""),
        ("Configuration data as of 2026-11-21T18:25:00\n", ""),
    ],
)
def test_the_completion_log_is_a_file_only_where_slurm_writes_one(config: str, path: str) -> None:
    assert states.completion_log(config) == path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("JobId=4 SubmitTime=2026-11-21T18:30:00 EligibleTime=Unknown StartTime=2026-11-21T18:31:05 X=a=b", 65.0),
        ("JobId=4 SubmitTime=2026-11-21T18:30:00 StartTime=Unknown", 0.0),
        ("JobId=4 SubmitTime=2026-11-21T18:30:01 StartTime=2026-11-21T18:30:00", 0.0),
        ("", 0.0),
    ],
)
def test_how_long_a_job_waited_is_by_slurms_own_clock(text: str, seconds: float) -> None:
    assert states.parse_queue_seconds(text) == seconds
