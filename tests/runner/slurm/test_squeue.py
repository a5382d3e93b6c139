"""How jobs stand: one question for all, history where the queue has forgotten, and no answer is no end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.runner.slurm.squeue import Queue
from ci_tasks.runner.slurm.states import UNKNOWN, State

GONE = {"code": 1, "out": "", "err": "slurm_load_jobs error: Invalid job id specified\n"}
SILENT = {"code": 1, "out": "", "err": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"}
NO_SACCT = {"code": None, "out": "", "err": "sacct: No such file or directory"}
NO_DATABASE = {"code": 1, "out": "", "err": "Slurm accounting storage is disabled\n"}
ONE = "JobId=4 JobState=NODE_FAIL NodeList=gpu1 ArrayJobId=12 ArrayTaskId=1\n"


def said(out: str) -> dict[str, Any]:
    return {"code": 0, "out": out, "err": ""}


class Slurm:
    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def ask(self, questions: Mapping[str, Sequence[str]], _: float) -> dict[str, Any]:
        self.asked += [list(argv) for argv in questions.values()]
        return {name: self.answers[argv[0]] for name, argv in questions.items()}


def test_all_jobs_of_all_arrays_are_one_question() -> None:
    slurm = Slurm(squeue=said("12|0|RUNNING|N/A|gpu1|None\n12|1|PENDING|N/A||Priority\n13|0|COMPLETED|N/A|gpu2|None\n"))
    found = Queue(slurm.ask).look(["12_0", "12_1", "13_0"])
    assert {job: state.state for job, state in found.items()} == {
        "12_0": "RUNNING",
        "12_1": "PENDING",
        "13_0": "COMPLETED",
    }
    assert len(slurm.asked) == 1
    assert "--jobs=12,13" in slurm.asked[0]


def test_what_the_queue_has_forgotten_sacct_is_asked_for() -> None:
    slurm = Slurm(squeue=said("12|0|RUNNING|N/A|gpu1|None\n"), sacct=said("12_1|CANCELLED by 1000|gpu1\n"))
    found = Queue(slurm.ask).look(["12_0", "12_1"])
    assert found["12_1"] == State("CANCELLED", node="gpu1", by="1000")
    assert "--jobs=12_1" in slurm.asked[1]


@pytest.mark.parametrize("sacct", [NO_SACCT, NO_DATABASE], ids=["no sacct", "no database"])
def test_without_accounting_the_completion_log_is_read(sacct: Any, tmp_path: Path) -> None:
    log = tmp_path / "jobcomp"
    log.write_text(ONE)
    config = said(f"JobCompLoc = {log}\nJobCompType = jobcomp/filetxt\n")
    slurm = Slurm(squeue=GONE, sacct=sacct, scontrol=config)
    assert Queue(slurm.ask).look(["12_1", "12_2"]) == {"12_1": State("NODE_FAIL", node="gpu1")}
    log.unlink()
    assert Queue(slurm.ask).look(["12_1"]) == {}


def heard(queue: Queue, job: str, wanted: str | None) -> None:
    until = time.monotonic() + 20
    while (found := queue.state(job)) is None or found.state != wanted:
        assert time.monotonic() < until, f"{found}, not {wanted}"
        time.sleep(0.01)


def test_a_controller_that_is_away_ends_nothing() -> None:
    slurm = Slurm(squeue=said("12|0|RUNNING|N/A|gpu1|None\n"), sacct=NO_SACCT, scontrol=said(""))
    queue = Queue(slurm.ask, every=0.01, unknown_after=0.0)
    heard(queue, "12_0", "RUNNING")
    slurm.answers["squeue"] = SILENT
    until = time.monotonic() + 20
    while not queue.problem:
        assert time.monotonic() < until
    asked = len(slurm.asked)
    while len(slurm.asked) < asked + 3:
        assert queue.state("12_0") == State("RUNNING", node="gpu1")
    assert "Unable to contact slurm controller" in queue.problem
    slurm.answers["squeue"] = said("12|0|TIMEOUT|N/A|gpu1|None\n")
    heard(queue, "12_0", "TIMEOUT")
    assert queue.problem == ""


def test_a_job_that_nobody_knows_for_long_is_gone() -> None:
    slurm = Slurm(squeue=GONE, sacct=NO_SACCT, scontrol=said(""))
    heard(Queue(slurm.ask, every=0.01, unknown_after=0.05), "12_0", UNKNOWN)


def test_a_job_that_is_over_is_asked_for_no_more() -> None:
    slurm = Slurm(squeue=said("12|0|FAILED|N/A|gpu1|None\n"))
    queue = Queue(slurm.ask, every=0.01)
    heard(queue, "12_0", "FAILED")
    asked = len(slurm.asked)
    time.sleep(0.1)
    assert len(slurm.asked) == asked
    assert queue.over_for("12_0") > 0
