"""Runs on their way to Slurm: at once, again, or not at all. Slurm is a script of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.agent.records import QueryAnswer, SlurmJob
from ci_tasks.agent.run_directory import RunDir, read_status
from ci_tasks.agent.slurm import cancel, job_file
from ci_tasks.agent.slurm.outcome import JobOutcome
from ci_tasks.agent.slurm.record_end import record_outcome
from ci_tasks.agent.slurm.submit import Submitter, enqueue

LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
NEVER = "sbatch: error: invalid partition specified: nope\n"


class Slurm:
    """Answers sbatch with what `says` has, one after another, then accepts everything. `tried` are the runs of each
    call, `accepted` those that it has."""

    def __init__(self, *says: str, knows: str = "") -> None:
        self.says, self.knows = list(says), knows
        self.tried: list[str] = []
        self.accepted: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def ask(self, questions: Mapping[str, Sequence[str]], _: float) -> dict[str, QueryAnswer]:
        return {name: self._answer(list(argv)) for name, argv in questions.items()}

    def _answer(self, argv: list[str]) -> QueryAnswer:
        if argv[0] == "squeue":
            return QueryAnswer(0, self.knows)
        self.before()
        assert argv[-2] == f"{argv[-1]}/{job_file.SCRIPT}"
        self.tried.append(Path(argv[-1]).name)
        if self.says:
            return QueryAnswer(1, err=self.says.pop(0))
        self.accepted.append(self.tried[-1])
        return QueryAnswer(0, f"{100 + len(self.accepted)}\n")


@pytest.fixture
def row(tmp_path: Path) -> Callable[..., str]:
    """Makes a run directory that waits to be submitted."""

    def make(name: str) -> str:
        run = tmp_path / "runs/batch" / name
        run.mkdir(parents=True)
        (run / "plan.json").write_text("{}")
        enqueue(str(run), SlurmJob(home=str(tmp_path)))
        return str(run)

    return make


def submitted(slurm: Slurm, runs: Sequence[str]) -> None:
    submitter = Submitter(slurm.ask, pauses=[0.01])
    for run in runs:
        submitter.add(run)
    until = time.monotonic() + 20
    while submitter.is_busy:
        assert time.monotonic() < until
        time.sleep(0.01)


def ids(runs: Sequence[str]) -> list[str]:
    return [job.id for job in map(job_file.read, runs) if job is not None]


def test_each_run_is_a_job_of_its_own(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(), [row("01"), row("02")]
    submitted(slurm, runs)
    assert (slurm.tried, ids(runs)) == (["01", "02"], ["101", "102"])


@pytest.mark.parametrize("says", [[TIMEOUT], [LIMIT], [TIMEOUT, LIMIT, LIMIT]])
def test_a_temporary_rejection_is_tried_again(row: Callable[..., str], says: list[str]) -> None:
    slurm, runs = Slurm(*says), [row("01"), row("02")]
    submitted(slurm, runs)
    assert slurm.tried == ["01"] * len(says) + ["01", "02"]
    assert ids(runs) == ["101", "102"]


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
    assert (slurm.tried, slurm.accepted) == (["01", "02"], ["02"])
    status = read_status(RunDir(runs[0]))
    assert (status.state, status.end, status.exit_code) == ("ended", "exit", 125)
    message = "ci-tasks: blocked: Slurm rejects the job: invalid partition specified: nope\n"
    assert Path(RunDir(runs[0]).log).read_text() == message


def test_a_submission_whose_answer_was_lost_is_not_repeated(row: Callable[..., str]) -> None:
    slurm, run = Slurm(TIMEOUT, knows="77\n"), row("01")
    submitted(slurm, [run])
    assert (slurm.tried, ids([run])) == (["01"], ["77"])


def test_a_run_that_is_cancelled_while_it_waits_is_not_submitted(row: Callable[..., str]) -> None:
    slurm, runs = Slurm(LIMIT), [row("01"), row("02")]
    slurm.before = lambda: _cancel(runs[0])
    submitted(slurm, runs)
    assert slurm.accepted == ["02"]
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
