"""Runs on their way through Slurm: submitted at once, again, or not at all; how their jobs stand; what a client sees of
them, and what that makes of their record. Slurm is a script of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import slurm
from ci_tasks.agent.records import QueryAnswer, Secrets, SlurmAllocation, SlurmJob, Status
from ci_tasks.agent.run_directory import RunDir, read_status, write_record
from ci_tasks.agent.slurm import (
    NEVER_SUBMITTED,
    UNKNOWN,
    SlurmJobState,
    SlurmSession,
    job_outcome,
    parse_answer,
    prepare,
    query,
    submit,
)

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
        assert argv[-2] == f"{argv[-1]}/{slurm.SCRIPT}"
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
    return [job.id for job in map(slurm.read, runs) if job is not None]


@pytest.mark.parametrize("says", [[], [TIMEOUT], [LIMIT], [TIMEOUT, LIMIT, LIMIT]])
def test_each_run_is_a_job_and_a_temporary_rejection_is_tried_again(row: Callable[..., str], says: list[str]) -> None:
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
    job = slurm.read(run)
    assert job is not None
    if read_status(RunDir(run)).state != "ended":
        slurm.record_end(run, ("cancelled", NEVER_SUBMITTED, None))


def test_secrets_are_their_owners_and_go_with_the_run(row: Callable[..., str]) -> None:
    slurm, run, modes = Sbatch(NEVER), row("01"), list[int]()
    slurm.before = lambda: modes.extend(path.stat().st_mode & 0o777 for path in Path(run).glob("secrets.json"))
    submitted(slurm, [run])
    assert modes == [0o600]
    assert [path for path in Path(run).iterdir() if path.is_file() and "value" in path.read_text()] == []


# -- what sbatch says ------------------------------------------------------------------------------------------------

_FAILED = "sbatch: error: Batch job submission failed: "
_POLICY = f"{_FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"


_NODES = "Batch job submission failed: Requested node configuration is not available"
ANSWERS = [  # output, errors → the job, the reason, whether to try again
    ("12\n", "", "12", "", False),
    ("12;cluster\n", "", "12", "", False),
    ("Welcome!\n12\n", "", "12", "", False),
    ("", "", "", "sbatch ended with 1", False),
    ("", f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}", "", "QOSMaxSubmitJobPerUserLimit", True),
    ("", f"{_FAILED}Socket timed out on send/recv operation\n", "", "Batch job submission failed: Socket timed", True),
    ("", "no answer from sbatch within 150 s", "", "no answer from sbatch within 150 s", True),
    ("", f"sbatch: error: QOSMaxGRESPerJob\n{_POLICY}", "", "QOSMaxGRESPerJob", False),
    ("", f"sbatch: error: {_NODES}\n", "", _NODES, False),
    ("", f"sbatch: error: invalid partition specified: nope\n{_FAILED}x\n", "", "invalid partition specified", False),
    ("", "sbatch: No such file or directory", "", "sbatch: No such file", False),
]


@pytest.mark.parametrize(("out", "err", "job", "reason", "again"), ANSWERS)
def test_an_answer_is_a_jobs_number_or_a_rejection_that_is_temporary_or_final(
    out: str, err: str, job: str, reason: str, again: bool
) -> None:
    number, said, is_temporary = parse_answer(QueryAnswer(0 if out else 1, out, err))
    assert (number, said[: len(reason)], is_temporary) == (job, reason, again)
    assert bool(said) == bool(reason)


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
    running, ended = "10|RUNNING|gpu1|0|N/A|None|\n", "11|CANCELLED by 1000|gpu1|0:15\n12|CANCELLED|None assigned|\n"
    slurm = Answers(squeue=QueryAnswer(0, running), sacct=QueryAnswer(0, ended))
    known, problem = query(["10", "11", "12"], slurm.run)
    assert known["11"] == SlurmJobState("CANCELLED", node="gpu1", exit_code=143)
    assert known["12"] == SlurmJobState("CANCELLED")
    assert ("--jobs=11,12" in slurm.commands[1], problem) == (True, "")


def test_a_controller_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Answers(squeue=QueryAnswer(0, "10|RUNNING|gpu1|0|N/A|None|\n"), sacct=NO_SACCT)
    session = following(slurm, monkeypatch)
    slurm.answers["squeue"] = SILENT
    session.refresh(time.monotonic())
    assert session.state("10")[0] == SlurmJobState("RUNNING", node="gpu1")
    assert "Unable to contact slurm controller" in session.problem
    slurm.answers["squeue"] = QueryAnswer(0, "10|TIMEOUT|gpu1|0|N/A|None|\n")
    session.refresh(time.monotonic())
    assert (session.state("10")[0], session.problem) == (SlurmJobState("TIMEOUT", node="gpu1", exit_code=0), "")


def test_a_job_that_slurm_did_not_know_yet_is_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Answers(squeue=GONE, sacct=NO_SACCT)
    session = following(slurm, monkeypatch)
    slurm.answers["sacct"] = QueryAnswer(0, "10|COMPLETED|gpu1|0:0\n")
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
    write_record(RunDir(str(path)).slurm_job, SlurmJob(name="batch", id="7"))
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
    write_record(RunDir(run).status, status)
    seen, is_final = queue.join(run, status)
    assert is_final
    assert read_status(RunDir(run)) == seen
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
    assert seen.slurm == SlurmAllocation("7", "n1", exit_code=4)
    log = Path(RunDir(run).log)
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
    assert (seen.end, seen.error) == (None, "the job vanished: unknown to squeue and sacct")


def test_the_end_that_slurm_tells_is_written_where_the_agent_wrote_none(run: str) -> None:
    status = join_ended(run, Queue(SlurmJobState("TIMEOUT"), "", 10.0), RUNNING)
    assert (status.end, status.concluded) == ("timeout", True)


# -- scancel ---------------------------------------------------------------------------------------------------------

IN_ORDER, AT_ONCE = ("--batch", "--signal=TERM", "7"), ("7",)
CANCELS = {  # Slurm's state, whether the record is concluded, whether it is killed → what scancel gets
    "on its node": ("RUNNING", False, False, IN_ORDER),
    "killed": ("RUNNING", False, True, AT_ONCE),
    "in the queue": ("PENDING", False, False, AT_ONCE),
    "over by what a job may have written": ("RUNNING", True, False, AT_ONCE),
}


@pytest.mark.parametrize(("state", "concluded", "kill", "words"), CANCELS.values(), ids=CANCELS)
def test_a_job_on_a_node_ends_in_order(
    run: str, monkeypatch: pytest.MonkeyPatch, state: str, concluded: bool, kill: bool, words: tuple[str, ...]
) -> None:
    write_record(RunDir(run).status, replace(RUNNING, concluded=concluded))
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(slurm, "query", lambda _: ({"7": SlurmJobState(state)}, ""))
    monkeypatch.setattr(slurm, "_scancel", lambda *words: asked.append(words))
    write_record(RunDir(run).slurm_job, SlurmJob(id="7"))
    slurm.cancel(run, kill)
    assert asked == [words]


# -- what Slurm says of a job, and what that makes of the record -------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (None, "; is the workspace of hosts.yaml on a file system of all nodes?"),
        (b"bash: cannot open\n", ": bash: cannot open"),
        (b"first\nno \xff such file\n\n", ": no \ufffd such file"),
        (b"module: command not found\n" * 1000 + b"no python3", ": no python3"),
        (b"x" * 100_000, ": " + "x" * 4096),
    ],
    ids=["no file", "one line", "not UTF-8", "many lines", "a line without an end"],
)
def test_a_job_that_could_not_start_is_blocked_with_the_last_line_of_its_output(
    tmp_path: Path, output: bytes | None, last: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_record(RunDir(str(run)).slurm_job, SlurmJob(name="batch", id="7"))
    if output is not None:
        (run / "slurm.out").write_bytes(output)
    status = slurm.record_end(str(run), SlurmJobState("FAILED", node="n1"))
    assert (status.state, status.end, status.exit_code, status.concluded) == ("ended", "exit", 125, True)
    assert status.error == f"the job could not start on n1 (FAILED){last}"
    assert Path(RunDir(str(run)).log).read_text() == f"ci-tasks: blocked: {status.error}\n"


def test_what_an_agent_that_died_left_is_masked_as_long_as_the_values_are_there(tmp_path: Path) -> None:
    """They are in a file of the run's directory, which goes then."""
    run = RunDir(str(tmp_path / "run"))
    Path(run.artifacts).mkdir(parents=True)
    write_record(RunDir(run.path).slurm_job, SlurmJob(name="batch", id="7"))
    Path(run.path, "slurm.out").write_text("no such token: correct-horse\n")
    Path(run.junit).write_text("<testcase name='correct-horse'/>")
    write_record(run.secrets, Secrets({"TOKEN": "correct-horse", "EMPTY": ""}))
    status = slurm.record_end(run.path, SlurmJobState("FAILED", node="n1"))
    assert status.masked
    assert not [path for path in Path(run.path).rglob("*") if path.is_file() and b"correct" in path.read_bytes()]
    assert Path(run.junit).read_text() == "<testcase name='***'/>"


IS_OVER = {"RUNNING": False, "COMPLETED": True, "PREEMPTED": True, UNKNOWN: True, "OF_TOMORROW": False}
IS_ON_NODE = {"PENDING": False, "RUNNING": True, "COMPLETING": True, "COMPLETED": False, "OF_TOMORROW": False}


def test_only_known_terminal_states_are_over() -> None:
    assert {state: SlurmJobState(state).is_over for state in IS_OVER} == IS_OVER
    assert {state: SlurmJobState(state).is_on_node for state in IS_ON_NODE} == IS_ON_NODE


CODES = [("0", "0:0", 0), ("1024", "4:0", 4), ("35072", "137:0", 137), ("9", "0:9", 137), ("4:0", "4:0", 4)]


@pytest.mark.parametrize(("squeue", "others", "code"), [*CODES, ("", "", None)])
def test_an_exit_code_is_read_as_each_program_prints_it(squeue: str, others: str, code: int | None) -> None:
    """22.05's squeue prints what wait(2) gave."""
    queued = slurm.parse_states(f"10|FAILED|gpu1|{squeue}|N/A|NonZeroExitCode|\n")["10"]
    assert queued.exit_code == code
    assert slurm.parse_states(f"10|FAILED|gpu1|{others}\n")["10"].exit_code == code
    assert slurm.parse_states("10|COMPLETING|gpu1|0|N/A|None|\n")["10"].exit_code is None, "it goes on"
    waits = slurm.parse_states("10|PENDING||0|2026-11-21T18:30:00|Resources|\n")["10"].description
    assert waits == "Slurm: PENDING (Resources), expected to start at 2026-11-21 18:30:00"


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


CLAIMS = [  # the end and the code of status.json, Slurm's code → that which counts
    ("exit", 0, 0, None),
    ("exit", 0, 4, 4),
    ("exit", 3, 0, None),
    ("exit", 125, 4, 4),
    ("exit", 137, 137, None),
    ("exit", 137, 9, None),  # as sacct has it
    ("cancelled", None, 130, None),
    ("cancelled", None, 4, 4),
    ("timeout", None, 124, None),
    ("error", None, 1, None),
    ("exit", 0, None, None),
]


@pytest.mark.parametrize(("end", "code", "slurms", "counts"), CLAIMS)
def test_a_failure_that_slurm_saw_counts_whatever_the_status_says(
    end: Any, code: int | None, slurms: int | None, counts: int | None
) -> None:
    state = SlurmJobState("FAILED" if slurms else "COMPLETED", exit_code=slurms)
    outcome = job_outcome(state, Status(state="ended", end=end, exit_code=code))
    assert (outcome and (outcome[0], outcome[2])) == (counts and ("exit", counts))
