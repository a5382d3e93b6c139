"""What a client sees of a Slurm job's run: the agent's status, unless Slurm knows better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent import run_directory
from ci_tasks.agent.records import SlurmAllocation, SlurmJob, Status
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.run_state import SlurmRunState
from ci_tasks.agent.slurm.squeue import SqueuePoller
from ci_tasks.agent.slurm.states import SlurmJobState


class Queue(SqueuePoller):
    """Slurm, as far as it is known."""

    def __init__(self, known: SlurmJobState | None, problem: str = "", seconds_over: float = 0.0) -> None:
        super().__init__()
        self.known, self.problem, self.over = known, problem, seconds_over

    def state(self, job: str) -> SlurmJobState | None:
        assert job == "7"
        return self.known

    def seconds_over(self, job: str) -> float:
        return self.over

    def is_missing(self, job: str) -> bool:
        return self.known is None and self.problem == "missing"


NEW = Status()
RUNNING = Status("running", phase="running", pid=5)
ENDED = Status("ended", phase="ended", pid=5, end="exit", exit_code=0)
INTERRUPTED = replace(ENDED, signalled=True)
SUBMITTED = "Slurm: submitted"

# what the agent wrote, what Slurm says → what the run waits for; None: the agent's status holds
STATES = {
    "not known yet, not started": (NEW, Queue(None), SUBMITTED),
    "not known yet, running": (RUNNING, Queue(None), None),
    "not known yet, interrupted": (INTERRUPTED, Queue(None), SUBMITTED),
    "no answer": (NEW, Queue(None, "connect failure"), "Slurm does not answer: connect failure"),
    "in the queue": (NEW, Queue(SlurmJobState("PENDING", "Resources")), "Slurm: PENDING (Resources)"),
    "starting": (NEW, Queue(SlurmJobState("RUNNING", node="n1")), "Slurm: RUNNING on n1"),
    "running": (RUNNING, Queue(SlurmJobState("RUNNING", node="n1")), None),
    "suspended": (RUNNING, Queue(SlurmJobState("SUSPENDED", node="n1")), "Slurm: SUSPENDED on n1"),
    "queued again": (RUNNING, Queue(SlurmJobState("PENDING", "BeginTime")), "Slurm: PENDING (BeginTime)"),
    "interrupted, on its way": (INTERRUPTED, Queue(SlurmJobState("COMPLETING")), "Slurm: COMPLETING"),
    "ended by its own word, not known yet": (ENDED, Queue(None), None),
    "ended by its own word, and runs": (ENDED, Queue(SlurmJobState("RUNNING", node="n1")), None),
    "ended by its own word, on its way": (ENDED, Queue(SlurmJobState("COMPLETING", node="n1")), None),
    "ended by its own word, no answer": (ENDED, Queue(None, "timeout"), "Slurm does not answer: timeout"),
    "over a moment ago": (RUNNING, Queue(SlurmJobState("FAILED", node="n1"), "", 9.0), "Slurm: FAILED on n1"),
}


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "run"
    path.mkdir()
    job_file.write(str(path), SlurmJob(home=str(tmp_path), name="batch", id="7"))
    return str(path)


@pytest.mark.parametrize(("status", "queue", "waiting"), STATES.values(), ids=STATES)
def test_a_run_is_not_over_as_long_as_slurm_may_go_on_with_it(
    run: str, status: Status, queue: Queue, waiting: str | None
) -> None:
    seen, is_final = SlurmRunState(run, queue).join(status)
    assert not is_final
    assert seen.slurm == SlurmAllocation("7")
    if waiting is None and status == ENDED:
        assert (seen.state, seen.phase, seen.waiting, seen.end) == ("running", "collecting", (), None)
    elif waiting is None:
        assert seen == replace(status, slurm=seen.slurm)
    else:
        assert (seen.state, seen.phase, seen.waiting) == ("running", "waiting", (waiting,))
        assert (seen.end, seen.exit_code, seen.signalled) == (None, None, False)


def join_ended(run: str, queue: Queue, status: Status = ENDED) -> Status:
    run_directory.write_record(run_directory.RunDir(run).status, status)
    seen, is_final = SlurmRunState(run, queue).join(status)
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
    seen = join_ended(run, Queue(None, "missing"), claims)
    assert (seen.exit_code, seen.slurm) == (0, SlurmAllocation("7"))


def test_the_end_that_slurm_tells_is_written_where_the_agent_wrote_none(run: str) -> None:
    run_directory.write_record(run_directory.RunDir(run).status, RUNNING)
    status, is_final = SlurmRunState(run, Queue(SlurmJobState("TIMEOUT"), "", 10.0)).join(RUNNING)
    assert (is_final, status.end, status.concluded) == (True, "timeout", True)
    assert run_directory.read_status(run_directory.RunDir(run)) == status
