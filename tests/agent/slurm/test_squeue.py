"""How jobs stand: one question for all, history where the queue has forgotten, and no answer is no end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.slurm.squeue import SqueuePoller
from ci_tasks.agent.slurm.states import UNKNOWN, SlurmJobState

GONE = QueryAnswer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
SILENT = QueryAnswer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
NO_SACCT = QueryAnswer(None, "", "sacct: No such file or directory")
NO_DATABASE = QueryAnswer(1, "", "Slurm accounting storage is disabled\n")
ONE = "JobId=4 JobState=NODE_FAIL NodeList=gpu1 ArrayJobId=12 ArrayTaskId=1\n"


def output(out: str) -> QueryAnswer:
    return QueryAnswer(0, out, "")


class Slurm:
    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.commands: list[list[str]] = []

    def ask(self, questions: Mapping[str, Sequence[str]], _: float) -> dict[str, QueryAnswer]:
        self.commands += [list(argv) for argv in questions.values()]
        return {name: self.answers[argv[0]] for name, argv in questions.items()}


def test_all_jobs_of_all_arrays_are_one_question() -> None:
    slurm = Slurm(
        squeue=output("12|0|RUNNING|N/A|gpu1|0|None|\n12|1|PENDING|N/A||0|Priority|\n13|0|COMPLETED|N/A|gpu2|0|None|\n")
    )
    states = SqueuePoller(slurm.ask).query(["12_0", "12_1", "13_0"])
    assert {job: state.state for job, state in states.items()} == {
        "12_0": "RUNNING",
        "12_1": "PENDING",
        "13_0": "COMPLETED",
    }
    assert len(slurm.commands) == 1
    assert "--jobs=12,13" in slurm.commands[0]


def test_what_the_queue_has_forgotten_sacct_is_asked_for() -> None:
    slurm = Slurm(squeue=output("12|0|RUNNING|N/A|gpu1|0|None|\n"), sacct=output("12_1|CANCELLED by 1000|0:15|gpu1\n"))
    states = SqueuePoller(slurm.ask).query(["12_0", "12_1"])
    assert states["12_1"] == SlurmJobState("CANCELLED", node="gpu1", by="1000", exit_code=143)
    assert "--jobs=12_1" in slurm.commands[1]


def test_jobs_that_were_cancelled_while_they_waited_are_one_line_without_an_index() -> None:
    lines = "12|0|RUNNING|N/A|gpu1|0|None|\n12|N/A|CANCELLED|N/A||0|None|\n"
    slurm = Slurm(squeue=output(lines), sacct=output("12_1|COMPLETED|0:0|gpu1\n"))
    states = SqueuePoller(slurm.ask).query(["12_0", "12_1", "12_2"])
    assert {job: state.state for job, state in states.items()} == {
        "12_0": "RUNNING",
        "12_1": "COMPLETED",
        "12_2": "CANCELLED",
    }


@pytest.mark.parametrize("sacct", [NO_SACCT, NO_DATABASE], ids=["no sacct", "no database"])
def test_without_accounting_the_completion_log_is_read(sacct: Any, tmp_path: Path) -> None:
    log = tmp_path / "jobcomp"
    log.write_text(ONE)
    config = output(f"JobCompLoc = {log}\nJobCompType = jobcomp/filetxt\n")
    slurm = Slurm(squeue=GONE, sacct=sacct, scontrol=config)
    assert SqueuePoller(slurm.ask).query(["12_1", "12_2"]) == {"12_1": SlurmJobState("NODE_FAIL", node="gpu1")}
    log.unlink()
    assert SqueuePoller(slurm.ask).query(["12_1"]) == {}


def wait_for_state(queue: SqueuePoller, job: str, expected: str | None) -> None:
    until = time.monotonic() + 20
    while (state := queue.state(job)) is None or state.state != expected:
        assert time.monotonic() < until, f"{state}, not {expected}"
        time.sleep(0.01)


def test_a_controller_that_is_away_ends_nothing() -> None:
    slurm = Slurm(squeue=output("12|0|RUNNING|N/A|gpu1|0|None|\n"), sacct=NO_SACCT, scontrol=output(""))
    queue = SqueuePoller(slurm.ask, interval=0.01, unknown_after=0.0)
    wait_for_state(queue, "12_0", "RUNNING")
    slurm.answers["squeue"] = SILENT
    until = time.monotonic() + 20
    while not queue.problem:
        assert time.monotonic() < until
    count = len(slurm.commands)
    while len(slurm.commands) < count + 3:
        assert queue.state("12_0") == SlurmJobState("RUNNING", node="gpu1")
    assert "Unable to contact slurm controller" in queue.problem
    slurm.answers["squeue"] = output("12|0|TIMEOUT|N/A|gpu1|0|None|\n")
    wait_for_state(queue, "12_0", "TIMEOUT")
    assert queue.problem == ""


def test_a_job_that_nobody_knows_for_long_is_gone() -> None:
    slurm = Slurm(squeue=GONE, sacct=NO_SACCT, scontrol=output(""))
    wait_for_state(SqueuePoller(slurm.ask, interval=0.01, unknown_after=0.05), "12_0", UNKNOWN)


def test_a_job_that_is_over_is_asked_for_no_more() -> None:
    slurm = Slurm(squeue=output("12|0|FAILED|N/A|gpu1|0|None|\n"))
    queue = SqueuePoller(slurm.ask, interval=0.01)
    wait_for_state(queue, "12_0", "FAILED")
    count = len(slurm.commands)
    time.sleep(0.1)
    assert len(slurm.commands) == count
    assert queue.seconds_over("12_0") > 0
