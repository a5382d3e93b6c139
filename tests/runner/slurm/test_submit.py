"""Rows on their way to Slurm: together, again, in smaller parts, or not at all. Slurm is a script of its answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.runner.slurm import ending
from ci_tasks.runner.slurm import job as jobs
from ci_tasks.runner.slurm.concluding import conclude_as
from ci_tasks.runner.slurm.fate import Fate
from ci_tasks.runner.slurm.submit import Submitter, enqueue

LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
NEVER = "sbatch: error: invalid partition specified: nope\n"


class Slurm:
    """Answers sbatch with what `says` has, one after another, then takes everything. `takes` are the rows of each
    submission that it has, `tried` how many each call offered."""

    def __init__(self, *says: str, knows: str = "") -> None:
        self.says, self.knows = list(says), knows
        self.tried: list[int] = []
        self.takes: list[list[str]] = []
        self.before: Callable[[], None] = lambda: None

    def ask(self, questions: Mapping[str, Sequence[str]], _: float) -> dict[str, dict[str, Any]]:
        return {name: self._answer(list(argv)) for name, argv in questions.items()}

    def _answer(self, argv: list[str]) -> dict[str, Any]:
        if argv[0] == "squeue":
            return {"code": 0, "out": self.knows, "err": ""}
        self.before()
        rows = Path(argv[-1]).read_text().splitlines()
        assert f"--array=0-{len(rows) - 1}" in argv
        self.tried.append(len(rows))
        if self.says:
            return {"code": 1, "out": "", "err": self.says.pop(0)}
        self.takes.append([Path(row).name for row in rows])
        return {"code": 0, "out": f"{100 + len(self.takes)}\n", "err": ""}


@pytest.fixture
def row(tmp_path: Path) -> Callable[..., str]:
    """Makes a run directory that waits to be submitted."""

    def make(name: str, script: str = "one") -> str:
        run = tmp_path / "runs/batch" / name
        run.mkdir(parents=True)
        (run / "plan.json").write_text("{}")
        (run / jobs.SCRIPT).write_text(script)
        enqueue(str(run), jobs.Job(home=str(tmp_path)))
        return str(run)

    return make


def submitted(slurm: Slurm, runs: Sequence[str], is_coming: Callable[[], bool] = lambda: False) -> None:
    submitter = Submitter(slurm.ask, pauses=[0.01], quiet=0.05, is_coming=is_coming)
    for run in runs:
        submitter.add(run)
    until = time.monotonic() + 20
    while submitter.is_busy:
        assert time.monotonic() < until
        time.sleep(0.01)


def ids(runs: Sequence[str]) -> list[str]:
    found = [jobs.read(run) for run in runs]
    return [job.id for job in found if job is not None]


def test_rows_that_want_the_same_are_one_array(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(), [row("01"), row("02", "two"), row("03")]
    submitted(slurm, runs)
    assert slurm.takes == [["01", "03"], ["02"]]
    assert ids(runs) == ["101_0", "102_0", "101_1"]


def test_a_row_that_is_just_being_made_is_waited_for(row: Callable[..., str]) -> None:
    slurm, making = Slurm(), threading.Event()
    runs = [row("01"), row("02")]
    submitter = Submitter(slurm.ask, quiet=0.02, is_coming=lambda: not making.is_set())
    submitter.add(runs[0])
    time.sleep(0.2)
    assert slurm.tried == []
    submitter.add(runs[1])
    making.set()
    while submitter.is_busy:
        time.sleep(0.01)
    assert slurm.takes == [["01", "02"]]


@pytest.mark.parametrize(
    ("says", "tried"),
    [
        ([TIMEOUT], [4, 4]),
        ([LIMIT], [4, 2, 2]),
        ([LIMIT, LIMIT, LIMIT], [4, 2, 1, 1, 1, 1, 1]),
        ([TIMEOUT, LIMIT], [4, 4, 2, 2]),
    ],
)
def test_what_is_rejected_for_now_is_offered_again(row: Callable[..., str], says: list[str], tried: list[int]) -> None:
    slurm, runs = Slurm(*says), [row(f"0{number}") for number in range(4)]
    submitted(slurm, runs)
    assert slurm.tried == tried
    assert [name for rows in slurm.takes for name in rows] == ["00", "01", "02", "03"], "each row once"
    assert len(set(ids(runs))) == 4


def test_meanwhile_a_row_s_status_says_why_it_waits(row: Callable[..., str]) -> None:
    run, seen = row("01"), []
    slurm = Slurm(LIMIT)
    slurm.before = lambda: seen.extend(read_json(RunDir(run).status)["waiting"])
    submitted(slurm, [run])
    assert seen[0] == "Slurm: being submitted"
    assert seen[1].startswith("Slurm takes no more just now: QOSMaxSubmitJobPerUserLimit; offered again in ")


def test_what_is_rejected_for_good_is_blocked_in_slurms_words(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(NEVER), [row("01"), row("02")]
    submitted(slurm, runs)
    assert slurm.tried == [2]
    for run in runs:
        status = read_json(RunDir(run).status)
        assert (status["state"], status["end"], status["exit_code"]) == ("ended", "exit", 125)
        said = "ci-tasks: blocked: Slurm takes no such job: invalid partition specified: nope\n"
        assert Path(RunDir(run).log).read_text() == said


def test_an_answer_that_nobody_heard_is_not_asked_for_twice(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(TIMEOUT, knows="77\n77\n"), [row("01"), row("02")]
    submitted(slurm, runs)
    assert slurm.tried == [2]
    assert ids(runs) == ["77_0", "77_1"]


def test_a_row_that_is_cancelled_while_it_waits_is_not_submitted(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(LIMIT), [row("01"), row("02")]
    slurm.before = lambda: _cancel(runs[0])
    submitted(slurm, runs)
    assert slurm.takes == [["02"]]
    assert read_json(RunDir(runs[0]).status)["end"] == "cancelled"


def _cancel(run: str) -> None:
    """As a person does while it is being offered."""
    job = jobs.read(run)
    assert job is not None
    if read_json(RunDir(run).status)["state"] != "ended":
        conclude_as(run, Fate("cancelled", ending.NEVER_SUBMITTED))


def test_secrets_are_their_owners_and_go_with_the_run(row: Callable[..., str]) -> None:
    run = row("01")
    jobs.write_secrets(run, {"TOKEN": "value"})
    (kept,) = [path for path in Path(run).iterdir() if "value" in path.read_text()]
    assert (kept.stat().st_mode & 0o777, jobs.read_secrets(run)) == (0o600, {"TOKEN": "value"})
    submitted(Slurm(NEVER), [run])
    assert not kept.exists()


def test_what_is_known_of_a_job_is_readable_by_whoever_comes_later(row: Callable[..., str], tmp_path: Path) -> None:
    run = row("01")
    jobs.write(run, jobs.Job(home=str(tmp_path), parts=({"tree": "t"},), name="n", index=3, array="12"))
    file = Path(run) / "slurm.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "of a later version": True}))
    job = jobs.read(run)
    assert job is not None
    assert (job.id, job.parts) == ("12_3", ({"tree": "t"},))
