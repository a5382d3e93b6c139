"""Rows on their way to Slurm: together, again, in smaller parts, or not at all. Slurm is a script of its answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.agent.records import CheckoutPart, QueryAnswer, SlurmJob
from ci_tasks.agent.run_directory import RunDir, read_status
from ci_tasks.agent.slurm import cancel, job_file
from ci_tasks.agent.slurm.outcome import JobOutcome
from ci_tasks.agent.slurm.record_end import record_outcome
from ci_tasks.agent.slurm.submit import Submitter, enqueue

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

    def ask(self, questions: Mapping[str, Sequence[str]], _: float) -> dict[str, QueryAnswer]:
        return {name: self._answer(list(argv)) for name, argv in questions.items()}

    def _answer(self, argv: list[str]) -> QueryAnswer:
        if argv[0] == "squeue":
            return QueryAnswer(0, self.knows)
        self.before()
        rows = Path(argv[-1]).read_text().splitlines()
        assert f"--array=0-{len(rows) - 1}" in argv
        self.tried.append(len(rows))
        if self.says:
            return QueryAnswer(1, err=self.says.pop(0))
        self.takes.append([Path(row).name for row in rows])
        return QueryAnswer(0, f"{100 + len(self.takes)}\n")


@pytest.fixture
def row(tmp_path: Path) -> Callable[..., str]:
    """Makes a run directory that waits to be submitted."""

    def make(name: str, script: str = "one") -> str:
        run = tmp_path / "runs/batch" / name
        run.mkdir(parents=True)
        (run / "plan.json").write_text("{}")
        (run / job_file.SCRIPT).write_text(script)
        enqueue(str(run), SlurmJob(home=str(tmp_path)))
        return str(run)

    return make


def submitted(slurm: Slurm, runs: Sequence[str], is_creating: Callable[[], bool] = lambda: False) -> None:
    submitter = Submitter(slurm.ask, pauses=[0.01], quiet=0.05, is_creating=is_creating)
    for run in runs:
        submitter.add(run)
    until = time.monotonic() + 20
    while submitter.is_busy:
        assert time.monotonic() < until
        time.sleep(0.01)


def ids(runs: Sequence[str]) -> list[str]:
    array_ids = [job_file.read(run) for run in runs]
    return [job.id for job in array_ids if job is not None]


def test_runs_with_the_same_script_are_one_array(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(), [row("01"), row("02", "two"), row("03")]
    submitted(slurm, runs)
    assert slurm.takes == [["01", "03"], ["02"]]
    assert ids(runs) == ["101_0", "102_0", "101_1"]


def test_a_run_that_is_being_created_is_waited_for(row: Callable[..., str]) -> None:
    slurm, making = Slurm(), threading.Event()
    runs = [row("01"), row("02")]
    submitter = Submitter(slurm.ask, quiet=0.02, is_creating=lambda: not making.is_set())
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
def test_a_temporary_rejection_is_tried_again(row: Callable[..., str], says: list[str], tried: list[int]) -> None:
    slurm, runs = Slurm(*says), [row(f"0{number}") for number in range(4)]
    submitted(slurm, runs)
    assert slurm.tried == tried
    assert [name for rows in slurm.takes for name in rows] == ["00", "01", "02", "03"], "each row once"
    assert len(set(ids(runs))) == 4


def test_meanwhile_the_status_says_why_it_waits(row: Callable[..., str]) -> None:
    run, reasons = row("01"), list[str]()
    slurm = Slurm(LIMIT)
    slurm.before = lambda: reasons.extend(read_status(RunDir(run)).waiting)
    submitted(slurm, [run])
    assert reasons[0] == "Slurm: being submitted"
    assert reasons[1].startswith("Slurm accepts no more jobs now: QOSMaxSubmitJobPerUserLimit; next try in ")


def test_a_permanent_rejection_is_blocked_with_slurms_message(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(NEVER), [row("01"), row("02")]
    submitted(slurm, runs)
    assert slurm.tried == [2]
    for run in runs:
        status = read_status(RunDir(run))
        assert (status.state, status.end, status.exit_code) == ("ended", "exit", 125)
        message = "ci-tasks: blocked: Slurm rejects the job: invalid partition specified: nope\n"
        assert Path(RunDir(run).log).read_text() == message


def test_a_submission_whose_answer_was_lost_is_not_repeated(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(TIMEOUT, knows="77\n77\n"), [row("01"), row("02")]
    submitted(slurm, runs)
    assert slurm.tried == [2]
    assert ids(runs) == ["77_0", "77_1"]


def test_a_run_that_is_cancelled_while_it_waits_is_not_submitted(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(LIMIT), [row("01"), row("02")]
    slurm.before = lambda: _cancel(runs[0])
    submitted(slurm, runs)
    assert slurm.takes == [["02"]]
    assert read_status(RunDir(runs[0])).end == "cancelled"


def _cancel(run: str) -> None:
    """As a person does while it is being offered."""
    job = job_file.read(run)
    assert job is not None
    if read_status(RunDir(run)).state != "ended":
        record_outcome(run, JobOutcome("cancelled", cancel.NEVER_SUBMITTED))


def test_secrets_are_their_owners_and_go_with_the_run(row: Callable[..., str]) -> None:
    run = row("01")
    job_file.write_secrets(run, {"TOKEN": "value"})
    (kept,) = [path for path in Path(run).iterdir() if "value" in path.read_text()]
    assert (kept.stat().st_mode & 0o777, job_file.read_secrets(run)) == (0o600, {"TOKEN": "value"})
    submitted(Slurm(NEVER), [run])
    assert not kept.exists()


def test_what_is_known_of_a_job_is_readable_by_whoever_comes_later(row: Callable[..., str], tmp_path: Path) -> None:
    run = row("01")
    job_file.write(
        run, SlurmJob(home=str(tmp_path), parts=(CheckoutPart("", "c", "t"),), name="n", index=3, array="12")
    )
    file = Path(run) / "slurm.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "of a later version": True}))
    job = job_file.read(run)
    assert job is not None
    assert (job.id, job.parts) == ("12_3", (CheckoutPart("", "c", "t"),))
