"""Runs on their way through Slurm: submitted at once, again, or not at all; how their jobs stand; and what a client
sees of them. Slurm is a script of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import run_directory
from ci_tasks.agent.records import QueryAnswer, SlurmAllocation, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, read_status
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.job_file import UNKNOWN, SlurmJobState
from ci_tasks.agent.slurm.session import NEVER_SUBMITTED, SlurmSession, parse_answer, prepare, query, submit

LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
NEVER = "sbatch: error: invalid partition specified: nope\n"


class Sbatch:
    """Answers sbatch with what `says` has, one after another, then accepts everything. `tried` are the runs of each
    call, `accepted` those that it has."""

    def __init__(self, *says: str, knows: str = "") -> None:
        self.says, self.knows = list(says), knows
        self.tried: list[str] = []
        self.accepted: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def run(self, argv: Sequence[str], _: float) -> QueryAnswer:
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
    """Makes a run directory."""

    def make(name: str) -> str:
        run = tmp_path / "runs/batch" / name
        run.mkdir(parents=True)
        (run / "plan.json").write_text("{}")
        return str(run)

    return make


def submitted(slurm: Sbatch, runs: Sequence[str]) -> None:
    for run in runs:
        prepare(run, SlurmJob(), "#!/bin/bash\n", {"TOKEN": "value"})
        submit(run, again=False, run=slurm.run, seconds=0.01)


def ids(runs: Sequence[str]) -> list[str]:
    return [job.id for job in map(job_file.read, runs) if job is not None]


def test_each_run_is_a_job_of_its_own(row: Callable[..., str]) -> None:
    slurm, runs = Sbatch(), [row("01"), row("02")]
    submitted(slurm, runs)
    assert (slurm.tried, ids(runs)) == (["01", "02"], ["101", "102"])


@pytest.mark.parametrize("says", [[TIMEOUT], [LIMIT], [TIMEOUT, LIMIT, LIMIT]])
def test_a_temporary_rejection_is_tried_again(row: Callable[..., str], says: list[str]) -> None:
    slurm, runs = Sbatch(*says), [row("01"), row("02")]
    submitted(slurm, runs)
    assert slurm.tried == ["01"] * len(says) + ["01", "02"]
    assert ids(runs) == ["101", "102"]


def test_meanwhile_the_status_says_why_it_waits(row: Callable[..., str]) -> None:
    run, reasons = row("01"), list[str]()
    slurm = Sbatch(LIMIT)
    slurm.before = lambda: reasons.extend(read_status(RunDir(run)).waiting)
    submitted(slurm, [run])
    assert reasons[0] == "Slurm: being submitted"
    assert reasons[1].startswith("Slurm accepts no more jobs now: QOSMaxSubmitJobPerUserLimit; next try in ")


def test_a_permanent_rejection_is_blocked_with_slurms_message(row: Callable[..., str]) -> None:
    slurm, runs = Sbatch(NEVER), [row("01"), row("02")]
    submitted(slurm, runs)
    assert (slurm.tried, slurm.accepted) == (["01", "02"], ["02"])
    status = read_status(RunDir(runs[0]))
    assert (status.state, status.end, status.exit_code) == ("ended", "exit", 125)
    message = "ci-tasks: blocked: Slurm rejects the job: invalid partition specified: nope\n"
    assert Path(RunDir(runs[0]).log).read_text() == message


def test_a_submission_whose_answer_was_lost_is_not_repeated(row: Callable[..., str]) -> None:
    slurm, run = Sbatch(TIMEOUT, knows="77\n"), row("01")
    submitted(slurm, [run])
    assert (slurm.tried, ids([run])) == (["01"], ["77"])


def test_a_run_that_is_cancelled_while_it_waits_is_not_submitted(row: Callable[..., str]) -> None:
    slurm, runs = Sbatch(LIMIT), [row("01"), row("02")]
    slurm.before = lambda: _cancel(runs[0])
    submitted(slurm, runs)
    assert slurm.accepted == ["02"]
    assert read_status(RunDir(runs[0])).end == "cancelled"


def _cancel(run: str) -> None:
    """As a person does while it is being offered."""
    job = job_file.read(run)
    assert job is not None
    if read_status(RunDir(run)).state != "ended":
        job_file.record_end(run, ("cancelled", NEVER_SUBMITTED, None))


def test_secrets_are_their_owners_and_go_with_the_run(row: Callable[..., str]) -> None:
    slurm, run, modes = Sbatch(NEVER), row("01"), list[int]()
    slurm.before = lambda: modes.extend(path.stat().st_mode & 0o777 for path in Path(run).glob("secrets.json"))
    submitted(slurm, [run])
    assert modes == [0o600]
    assert [path for path in Path(run).iterdir() if path.is_file() and "value" in path.read_text()] == []


# -- what sbatch says ------------------------------------------------------------------------------------------------

_FAILED = "sbatch: error: Batch job submission failed: "
_POLICY = f"{_FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"


@pytest.mark.parametrize(("out", "job"), [("12\n", "12"), ("12;cluster\n", "12"), ("Welcome!\n12\n", "12")])
def test_an_accepted_submission_has_its_number(out: str, job: str) -> None:
    assert parse_answer(QueryAnswer(0, out)) == (job, "", False)


@pytest.mark.parametrize(
    ("err", "is_temporary"),
    [
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}", True),
        (f"{_FAILED}Socket timed out on send/recv operation\n", True),
        ("no answer from sbatch within 150 s", True),
        (f"sbatch: error: QOSMaxGRESPerJob\n{_POLICY}", False),
        (f"{_FAILED}Requested node configuration is not available\n", False),
        (f"sbatch: error: invalid partition specified: nope\n{_FAILED}Invalid partition name specified\n", False),
        ("sbatch: No such file or directory", False),
    ],
)
def test_a_rejection_is_temporary_or_final(err: str, is_temporary: bool) -> None:
    job, _, again = parse_answer(QueryAnswer(1, err=err))
    assert (job, again) == ("", is_temporary)


@pytest.mark.parametrize(
    ("err", "reason"),
    [
        ("sbatch: error: QOSMaxGRESPerJob\n", "QOSMaxGRESPerJob"),
        (f"{_FAILED}Requested node configuration is not available\n",
         "Batch job submission failed: Requested node configuration is not available"),
        ("", "sbatch ended with 1"),
    ],
)  # fmt: skip
def test_the_reason_is_sbatchs_message(err: str, reason: str) -> None:
    assert parse_answer(QueryAnswer(1, err=err))[1] == reason


# -- how jobs stand --------------------------------------------------------------------------------------------------

GONE = QueryAnswer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
SILENT = QueryAnswer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
NO_SACCT = QueryAnswer(None, "", "sacct: No such file or directory")


class Answers:
    """squeue and sacct, with one answer each."""

    def __init__(self, **answers: QueryAnswer) -> None:
        self.answers, self.commands = answers, list[Sequence[str]]()

    def run(self, argv: Sequence[str], _: float) -> QueryAnswer:
        self.commands.append(argv)
        return self.answers[argv[0]]


def following(slurm: Answers, monkeypatch: pytest.MonkeyPatch) -> SlurmSession:
    """One that asks when it is told to."""
    session = SlurmSession(slurm.run)
    monkeypatch.setattr(session._thread, "is_alive", lambda: True)
    assert session.state("10")[0] is None
    session.refresh(time.monotonic())
    return session


def test_what_the_queue_has_forgotten_sacct_is_asked_for() -> None:
    running, cancelled = "10|RUNNING|N/A|gpu1|0|None|\n", "11|CANCELLED by 1000|0:15|gpu1\n"
    slurm = Answers(squeue=QueryAnswer(0, running), sacct=QueryAnswer(0, cancelled))
    known, problem = query(["10", "11"], slurm.run)
    assert known["11"] == SlurmJobState("CANCELLED", node="gpu1", exit_code=143)
    assert ("--jobs=11" in slurm.commands[1], problem) == (True, "")


def test_a_controller_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Answers(squeue=QueryAnswer(0, "10|RUNNING|N/A|gpu1|0|None|\n"), sacct=NO_SACCT)
    session = following(slurm, monkeypatch)
    slurm.answers["squeue"] = SILENT
    session.refresh(time.monotonic())
    assert session.state("10")[0] == SlurmJobState("RUNNING", node="gpu1")
    assert "Unable to contact slurm controller" in session.problem
    slurm.answers["squeue"] = QueryAnswer(0, "10|TIMEOUT|N/A|gpu1|0|None|\n")
    session.refresh(time.monotonic())
    assert (session.state("10")[0], session.problem) == (SlurmJobState("TIMEOUT", node="gpu1", exit_code=0), "")


def test_a_job_that_slurm_did_not_know_yet_is_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Answers(squeue=GONE, sacct=NO_SACCT)
    session = following(slurm, monkeypatch)
    slurm.answers["sacct"] = QueryAnswer(0, "10|COMPLETED|0:0|gpu1\n")
    session.refresh(time.monotonic() + 5)
    assert session.state("10")[0] == SlurmJobState("COMPLETED", node="gpu1", exit_code=0)


# -- what a client sees ----------------------------------------------------------------------------------------------


class Queue(SlurmSession):
    """Slurm, as far as it is known, and for how many seconds."""

    def __init__(self, known: SlurmJobState | None, problem: str = "", seconds: float = 0.0) -> None:
        super().__init__()
        self.known, self.problem, self.seconds = known, problem, seconds

    def state(self, job: str) -> tuple[SlurmJobState | None, float]:
        return self.known, self.seconds


NEW = Status()
RUNNING = Status("running", phase="running", pid=5)
ENDED = Status("ended", phase="ended", pid=5, end="exit", exit_code=0)
SUBMITTED = "Slurm: submitted"

# what the agent wrote, what Slurm says → what the run waits for; None: the agent's status holds
STATES = {
    "not known yet, not started": (NEW, Queue(None), SUBMITTED),
    "no answer": (NEW, Queue(None, "connect failure"), "Slurm does not answer: connect failure"),
    "in the queue": (NEW, Queue(SlurmJobState("PENDING", "Resources")), "Slurm: PENDING (Resources)"),
    "suspended": (RUNNING, Queue(SlurmJobState("SUSPENDED", node="n1")), "Slurm: SUSPENDED on n1"),
    "queued again": (RUNNING, Queue(SlurmJobState("PENDING", "BeginTime")), "Slurm: PENDING (BeginTime)"),
    "interrupted, queued again": (ENDED, Queue(SlurmJobState("PENDING")), "Slurm: PENDING"),
    "ended by its own word, not known yet": (ENDED, Queue(None), None),
    "ended by its own word, and runs": (ENDED, Queue(SlurmJobState("RUNNING", node="n1")), None),
    "ended by its own word, no answer": (ENDED, Queue(None, "timeout"), "Slurm does not answer: timeout"),
    "gone a moment ago": (RUNNING, Queue(SlurmJobState(UNKNOWN), "", 59.0), None),
    "over a moment ago": (RUNNING, Queue(SlurmJobState("FAILED", node="n1"), "", 9.0), "Slurm: FAILED on n1"),
}


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "run"
    path.mkdir()
    job_file.write(str(path), SlurmJob(name="batch", id="7"))
    return str(path)


@pytest.mark.parametrize(("status", "queue", "waiting"), STATES.values(), ids=STATES)
def test_a_run_is_not_over_as_long_as_slurm_may_go_on_with_it(
    run: str, status: Status, queue: Queue, waiting: str | None
) -> None:
    seen, is_final = queue.join(run, status)
    assert not is_final
    assert seen.slurm == SlurmAllocation("7")
    if waiting is None and status == ENDED:
        assert (seen.state, seen.phase, seen.waiting, seen.end) == ("running", "collecting", (), None)
    elif waiting is None:
        assert seen == replace(status, slurm=seen.slurm)
    else:
        assert (seen.state, seen.phase, seen.waiting) == ("running", "waiting", (waiting,))
        assert (seen.end, seen.exit_code) == (None, None)


def join_ended(run: str, queue: Queue, status: Status = ENDED) -> Status:
    run_directory.write_record(run_directory.RunDir(run).status, status)
    seen, is_final = queue.join(run, status)
    assert is_final
    assert run_directory.read_status(run_directory.RunDir(run)) == seen
    return seen


def test_an_end_that_slurm_confirms_holds_and_nothing_is_written_twice(run: str) -> None:
    over = Queue(SlurmJobState("COMPLETED", node="n1", exit_code=0))
    seen = join_ended(run, over)
    assert (seen.end, seen.exit_code, seen.error) == ("exit", 0, None)
    assert seen.slurm == SlurmAllocation("7", "n1", exit_code=0)
    assert join_ended(run, over, seen) == seen


def test_where_slurm_saw_another_exit_code_than_status_json_has_slurms_counts(run: str) -> None:
    over = Queue(SlurmJobState("FAILED", node="n1", exit_code=4))
    seen = join_ended(run, over, replace(ENDED, concluded=True))
    assert (seen.end, seen.exit_code) == ("exit", 4)
    assert seen.error == "status.json says that the job ended with 0, Slurm says 4"
    assert seen.slurm == SlurmAllocation("7", "n1", exit_code=4, claimed=0)
    log = Path(run_directory.RunDir(run).log)
    assert log.read_text() == f"ci-tasks: {seen.error}\n"
    assert join_ended(run, over, seen) == seen
    assert log.read_text().count("\n") == 1


def test_an_end_that_slurm_has_forgotten_holds_unverified(run: str) -> None:
    """Whatever the file says of that itself. Nobody waits for accounting, which is for jobs that have just ended."""
    claims = replace(ENDED, slurm=SlurmAllocation("7", exit_code=0))
    seen = join_ended(run, Queue(SlurmJobState(UNKNOWN)), claims)
    assert (seen.exit_code, seen.slurm) == (0, SlurmAllocation("7"))


def test_a_job_that_slurm_does_not_know_for_a_minute_is_lost(run: str) -> None:
    seen = join_ended(run, Queue(SlurmJobState(UNKNOWN), "", 61.0), RUNNING)
    assert (seen.end, seen.error) == (None, "the job vanished: neither squeue nor sacct knows it")


def test_the_end_that_slurm_tells_is_written_where_the_agent_wrote_none(run: str) -> None:
    run_directory.write_record(run_directory.RunDir(run).status, RUNNING)
    status, is_final = Queue(SlurmJobState("TIMEOUT"), "", 10.0).join(run, RUNNING)
    assert (is_final, status.end, status.concluded) == (True, "timeout", True)
    assert run_directory.read_status(run_directory.RunDir(run)) == status
