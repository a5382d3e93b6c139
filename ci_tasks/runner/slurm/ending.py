"""Ending a run that is a job of Slurm's: its runner is told, Slurm is where that does not help. Many at once together.

The runner is told by a signal to the batch script alone, which it has become: so it ends its job in order, collects,
and says how it ended.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, List, Tuple

from .. import layout
from ..code.objects import Busy, locked
from ..link.ask import ask
from . import job as jobs
from .concluding import conclude, conclude_as
from .fate import Fate, has_begun, is_sure
from .squeue import PATIENCE, Queue
from .states import State

NEVER_SUBMITTED = "cancelled before Slurm had it"
_ORDERLY = 90.0  # seconds, beside its patience, that a runner gets to end in order
_TOGETHER = 0.1  # seconds in which requests come together
_GLANCE = 0.5
_LOCK_PATIENCE = 200.0


class SlurmRefused(Exception):
    """Slurm does not end the job; the message says why."""


def cancel(run_dir: str, job: jobs.Job, patience: float) -> None:
    """Returns when the run has ended, or Slurm was told to end it. Raises SlurmRefused."""
    job = _never_submit(run_dir, job)
    if _is_over(run_dir) or not job.id:
        return
    if _TELL.put(job.id):  # it has a runner, which was told
        until = time.monotonic() + patience + _ORDERLY
        while not _is_over(run_dir) and time.monotonic() < until:
            time.sleep(_GLANCE)
        if not _is_over(run_dir):
            _END.put(job.id)
    else:
        _taken_back(run_dir, job)


def kill(run_dir: str, job: jobs.Job) -> None:
    """Without patience, but for Slurm's own. Raises SlurmRefused."""
    job = _never_submit(run_dir, job)
    if job.id and not _is_over(run_dir):
        _END.put(job.id)
        _taken_back(run_dir, job)


def leave(run_dir: str, job: jobs.Job, seconds: float = 60.0) -> None:
    """Nothing of the run is at work when this returns, as far as Slurm can tell in that time."""
    try:
        kill(run_dir, job)
    except SlurmRefused:
        return
    until = time.monotonic() + seconds
    queue = Queue()
    while job.id and not _is_over(run_dir) and time.monotonic() < until:
        state = queue.look([job.id]).get(job.id)
        if state is None or state.is_over:
            return
        time.sleep(_GLANCE)


def _never_submit(run_dir: str, job: jobs.Job) -> jobs.Job:
    """A run that Slurm does not have yet ends here. Returns what is known of the job now."""
    if job.array:
        return job
    try:
        with locked(job.lock, True, _LOCK_PATIENCE):
            known = jobs.read(run_dir) or job
            if not known.array:
                conclude_as(run_dir, Fate(layout.END_CANCELLED, NEVER_SUBMITTED))
            return known
    except Busy:
        raise SlurmRefused("it is being submitted, and that takes too long") from None


def _taken_back(run_dir: str, job: jobs.Job) -> None:
    """Of an array's job that is cancelled while it waits, Slurm keeps no record at all, so that we have to."""
    begun = has_begun(layout.read_json(layout.RunDir(run_dir).status))
    if not begun and not _KNOWS.put(job.id):
        conclude(run_dir, State("CANCELLED"))


def _is_over(run_dir: str) -> bool:
    status = layout.read_json(layout.RunDir(run_dir).status)
    return is_sure(status) or status.get("state") == layout.STATE_ENDED


class _Together:
    """Calls `do` once for the jobs that come within a moment; everybody gets the answer for theirs."""

    def __init__(self, do: Callable[[List[str]], Dict[str, bool]]) -> None:
        self._do = do
        self._change = threading.Lock()
        self._coming: List[str] = []
        self._answer: Tuple[threading.Event, Dict[str, object]] = (threading.Event(), {})

    def put(self, job: str) -> bool:
        with self._change:
            leads = not self._coming
            self._coming.append(job)
            there, answer = self._answer
        if leads:
            time.sleep(_TOGETHER)
            with self._change:
                those, self._coming = self._coming, []
                self._answer = (threading.Event(), {})
            try:
                answer.update(self._do(those))
            except SlurmRefused as refusal:
                answer[""] = str(refusal)
            finally:
                there.set()
        there.wait()
        if "" in answer:
            raise SlurmRefused(str(answer[""]))
        return bool(answer.get(job))


def _tell(those: List[str]) -> Dict[str, bool]:
    """Those that run are told by signal; the others Slurm forgets. Which of them have a runner that was told."""
    known = Queue().look(those)
    on_node = [job for job in those if job in known and known[job].is_on_node]
    _scancel(["--batch", "--signal=TERM"], on_node)
    _scancel([], [job for job in those if job not in on_node and not (job in known and known[job].is_over)])
    return dict.fromkeys(on_node, True)


def _end(those: List[str]) -> Dict[str, bool]:
    _scancel([], those)
    return {}


def _scancel(how: List[str], those: List[str]) -> None:
    if not those:
        return
    said = ask({"": ["scancel", *how, *those]}, PATIENCE)[""]
    # One of them may have ended this moment, which is what was wanted.
    if said["code"] != 0 and "Invalid job id" not in said["err"] and "already completing" not in said["err"]:
        raise SlurmRefused((said["err"].strip() or "scancel ended with %s" % said["code"]).splitlines()[-1])


def _knows(those: List[str]) -> Dict[str, bool]:
    """Which of them Slurm has not forgotten, or may not have."""
    queue = Queue()
    known = queue.look(those)
    return {job: bool(queue.problem) or (job in known and not known[job].is_over) for job in those}


_TELL, _END, _KNOWS = _Together(_tell), _Together(_end), _Together(_knows)
