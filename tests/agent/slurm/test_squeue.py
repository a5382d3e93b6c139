"""How jobs stand: one question for all, history where the queue has forgotten, and no answer is no end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.slurm.squeue import SqueuePoller
from ci_tasks.agent.slurm.states import UNKNOWN, SlurmJobState

GONE = QueryAnswer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
SILENT = QueryAnswer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
NO_SACCT = QueryAnswer(None, "", "sacct: No such file or directory")


def output(out: str) -> QueryAnswer:
    return QueryAnswer(0, out, "")


class Slurm:
    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.commands: list[list[str]] = []

    def ask(self, questions: Mapping[str, Sequence[str]], _: float) -> dict[str, QueryAnswer]:
        self.commands += [list(argv) for argv in questions.values()]
        return {name: self.answers[argv[0]] for name, argv in questions.items()}


def test_what_the_queue_has_forgotten_sacct_is_asked_for() -> None:
    slurm = Slurm(squeue=output("10|RUNNING|N/A|gpu1|0|None|\n"), sacct=output("11|CANCELLED by 1000|0:15|gpu1\n"))
    states = SqueuePoller(slurm.ask).query(["10", "11"])
    assert states["11"] == SlurmJobState("CANCELLED", node="gpu1", by="1000", exit_code=143)
    assert "--jobs=11" in slurm.commands[1]


def wait_for_state(queue: SqueuePoller, job: str, expected: str | None) -> None:
    until = time.monotonic() + 20
    while (state := queue.state(job)) is None or state.state != expected:
        assert time.monotonic() < until, f"{state}, not {expected}"
        time.sleep(0.01)


def test_a_controller_that_is_away_ends_nothing() -> None:
    slurm = Slurm(squeue=output("10|RUNNING|N/A|gpu1|0|None|\n"), sacct=NO_SACCT)
    queue = SqueuePoller(slurm.ask, interval=0.01, unknown_after=0.0)
    wait_for_state(queue, "10", "RUNNING")
    slurm.answers["squeue"] = SILENT
    until = time.monotonic() + 20
    while not queue.problem:
        assert time.monotonic() < until
    count = len(slurm.commands)
    while len(slurm.commands) < count + 3:
        assert queue.state("10") == SlurmJobState("RUNNING", node="gpu1")
    assert "Unable to contact slurm controller" in queue.problem
    slurm.answers["squeue"] = output("10|TIMEOUT|N/A|gpu1|0|None|\n")
    wait_for_state(queue, "10", "TIMEOUT")
    assert queue.problem == ""


def test_a_job_that_nobody_knows_for_long_is_gone() -> None:
    slurm = Slurm(squeue=GONE, sacct=NO_SACCT)
    wait_for_state(SqueuePoller(slurm.ask, interval=0.01, unknown_after=0.05), "10", UNKNOWN)
