"""What Slurm's programs say, read: squeue, sacct and the completion log, each as the program wrote it."""

from __future__ import annotations

import pytest

from ci_tasks.agent.slurm import states
from ci_tasks.agent.slurm.states import SlurmJobState

SQUEUE = """\
12|0|RUNNING|2026-11-21T18:24:47|gpu1|None
12|1|PENDING|2026-11-21T18:30:00||Resources
12|2|PENDING|N/A||QOSMaxGRESPerUser
12|3|PENDING|N/A||Nodes required for job are DOWN, DRAINED or reserved
12|4|NODE_FAIL|2026-11-21T18:24:47|gpu2|NodeDown
"""
JOBCOMP = """\
JobId=2 UserId=root(0) Name=x JobState=PENDING Partition=main NodeList=gpu1 ArrayJobId=1 ArrayTaskId=0
JobId=3 UserId=root(0) Name=x JobState=CANCELLED Partition=main NodeList=gpu1 ArrayJobId=1 ArrayTaskId=1
JobId=9 UserId=root(0) Name=another JobState=COMPLETED NodeList=gpu1
JobId=2 UserId=root(0) Name=x JobState=TIMEOUT Partition=main NodeList=gpu2 ArrayJobId=1 ArrayTaskId=0
JobId=4 UserId=ro"""


@pytest.mark.parametrize(
    ("job", "description"),
    [
        ("12_0", "Slurm: RUNNING on gpu1"),
        ("12_1", "Slurm: PENDING (Resources), expected to start at 2026-11-21 18:30:00"),
        ("12_2", "Slurm: PENDING (QOSMaxGRESPerUser)"),
        ("12_3", "Slurm: PENDING (Nodes required for job are DOWN, DRAINED or reserved)"),
        ("12_4", "Slurm: NODE_FAIL (NodeDown) on gpu2"),
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
    output = states.parse_sacct("12_0|CANCELLED by 1000|gpu1\n12_1|OUT_OF_MEMORY|gpu2\n12_2|CANCELLED|None assigned\n")
    assert output == {
        "12_0": SlurmJobState("CANCELLED", node="gpu1", by="1000"),
        "12_1": SlurmJobState("OUT_OF_MEMORY", node="gpu2"),
        "12_2": SlurmJobState("CANCELLED"),
    }


def test_of_a_requeued_job_the_completion_log_s_last_line_counts_and_half_a_line_does_not() -> None:
    assert states.parse_completion_log(JOBCOMP) == {
        "1_0": SlurmJobState("TIMEOUT", node="gpu2"),
        "1_1": SlurmJobState("CANCELLED", node="gpu1"),
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
