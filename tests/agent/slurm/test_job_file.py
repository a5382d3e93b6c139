"""What Slurm says of a job, and what that makes of the run's record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Secrets, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.job_file import UNKNOWN, SlurmJobState, claimed_code, job_outcome


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (None, "; is the workspace of hosts.yaml on a file system of all nodes?"),
        (b"", "; is the workspace of hosts.yaml on a file system of all nodes?"),
        (b"bash: cannot open\n", ": bash: cannot open"),
        (b"first\nno \xff such file\n\n", ": no \ufffd such file"),
        (b"module: command not found\n" * 1000 + b"no python3", ": no python3"),
        (b"x" * 100_000, ": " + "x" * 4096),
    ],
    ids=["no file", "no output", "one line", "not UTF-8", "many lines", "a line without an end"],
)
def test_a_job_that_could_not_start_is_blocked_with_the_last_line_of_its_output(
    tmp_path: Path, output: bytes | None, last: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    job_file.write(str(run), SlurmJob(name="batch", id="7"))
    if output is not None:
        (run / "slurm.out").write_bytes(output)
    status = job_file.record_end(str(run), SlurmJobState("FAILED", node="n1"))
    assert (status.state, status.end, status.exit_code, status.concluded) == ("ended", "exit", 125, True)
    assert status.error == f"the job could not start on n1 (FAILED){last}"
    assert Path(RunDir(str(run)).log).read_text() == f"ci-tasks: blocked: {status.error}\n"


def test_what_an_agent_that_died_left_is_masked_as_long_as_the_values_are_there(tmp_path: Path) -> None:
    """They are in a file of the run's directory, which goes then."""
    run = RunDir(str(tmp_path / "run"))
    Path(run.artifacts).mkdir(parents=True)
    job_file.write(run.path, SlurmJob(name="batch", id="7"))
    Path(run.path, "slurm.out").write_text("no such token: correct-horse\n")
    Path(run.junit).write_text("<testcase name='correct-horse'/>")
    write_record(run.secrets, Secrets({"TOKEN": "correct-horse", "EMPTY": ""}))
    status = job_file.record_end(run.path, SlurmJobState("FAILED", node="n1"))
    assert status.masked
    assert not [path for path in Path(run.path).rglob("*") if path.is_file() and b"correct" in path.read_bytes()]
    assert Path(run.junit).read_text() == "<testcase name='***'/>"


@pytest.mark.parametrize(
    ("state", "over", "on_node"),
    [
        ("PENDING", False, False),
        ("RUNNING", False, True),
        ("COMPLETING", False, True),
        ("A_STATE_OF_TOMORROW", False, False),
        ("COMPLETED", True, False),
        ("PREEMPTED", True, False),
        (job_file.UNKNOWN, True, False),
    ],
)
def test_only_known_terminal_states_are_over(state: str, over: bool, on_node: bool) -> None:
    assert (SlurmJobState(state).is_over, SlurmJobState(state).is_on_node) == (over, on_node)


def test_what_sacct_says() -> None:
    output = job_file.parse_sacct(
        "10|CANCELLED by 1000|0:15|gpu1\n11|OUT_OF_MEMORY|0:125|gpu2\n12|CANCELLED||None assigned\n"
    )
    assert output == {
        "10": SlurmJobState("CANCELLED", node="gpu1", exit_code=143),
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
    queued = job_file.parse_squeue(f"10|FAILED|N/A|gpu1|{squeue}|NonZeroExitCode|\n")["10"]
    assert queued.exit_code == code
    assert job_file.parse_sacct(f"10|FAILED|{others}|gpu1\n")["10"].exit_code == code


def test_a_job_that_goes_on_has_no_exit_code_yet() -> None:
    assert job_file.parse_squeue("10|COMPLETING|N/A|gpu1|0|None|\n")["10"].exit_code is None


# -- outcomes --------------------------------------------------------------------------------------------------------

WAITS = Status("running", "waiting")
BEGUN = Status("running", pid=1, boot_id="b")
CUT = Status("ended", pid=1, boot_id="b", end="cancelled")
TERMINATED = Status("ended", pid=1, boot_id="b", end="exit", exit_code=143)
KEPT = "the agent's status"


@pytest.mark.parametrize(
    ("slurm", "status", "end", "code"),
    [
        # A signal ended it: the agent cannot know why, Slurm does.
        ("TIMEOUT", CUT, "timeout", None),
        ("DEADLINE", BEGUN, "timeout", None),
        ("CANCELLED", CUT, "cancelled", None),
        ("PREEMPTED", CUT, "exit", 125),
        ("OUT_OF_MEMORY", BEGUN, "exit", 137),
        ("NODE_FAIL", BEGUN, None, None),
        ("BOOT_FAIL", WAITS, "exit", 125),
        # Nothing of Slurm's ended it.
        ("FAILED", CUT, KEPT, None),
        ("COMPLETED", CUT, KEPT, None),
        # The batch script ended without the agent's status.
        ("FAILED", BEGUN, None, None),
        ("FAILED", WAITS, "exit", 125),
        # Nobody knows it any more.
        (UNKNOWN, BEGUN, None, None),
        (UNKNOWN, WAITS, None, None),
        (UNKNOWN, CUT, None, None),
        # The signal reached the job's processes before the agent.
        (UNKNOWN, TERMINATED, None, None),
        ("FAILED", TERMINATED, KEPT, None),
        # Cancelled before it began.
        ("CANCELLED", WAITS, "cancelled", None),
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
