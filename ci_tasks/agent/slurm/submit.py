"""Submitting runs: those with the same batch script together, as one array.

Rows come one after another, so the submitter waits for those that come close together. What Slurm rejects temporarily
is submitted again after growing pauses, in smaller arrays where there are too many rows; meanwhile each run's status
says so. What it rejects for good is blocked.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from dataclasses import replace
from typing import Callable, Dict, List, Sequence

from .. import run_directory
from ..agent_log import log_traceback
from ..file_lock import LockTimeout, file_lock
from ..host_queries import ask
from ..records import SlurmJob, Status
from ..run_directory import EXIT_BLOCKED
from . import job_file, states
from .outcome import JobOutcome
from .record_end import record_outcome
from .sbatch import Submission, parse_answer, sbatch_command
from .squeue import RunPrograms

QUIET = 0.5  # seconds without another run, after which the queued ones are submitted
PAUSES = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # seconds until the next try, the last one again and again
MAX_ROWS = 500  # rows of one array; Slurm's own default limit is 1000
_TIMEOUT = 150.0  # sbatch itself tries again for a while
_LOCK_TIMEOUT = 300.0


def enqueue(run_dir: str, job: SlurmJob) -> None:
    """Record that a run is to be submitted: from now on it waits."""
    job_file.write(run_dir, job)
    _write_waiting(run_dir, "Slurm: being submitted")


class Submitter:
    """Takes runs with `add`, and submits them in a thread of its own. `is_busy`: some are not submitted yet."""

    def __init__(
        self,
        run_programs: RunPrograms = ask,
        pauses: Sequence[float] = PAUSES,
        quiet: float = QUIET,
        is_creating: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_creating`: whether another run is being created now, which may join the same array."""
        self._run_programs, self._pauses, self._quiet, self._is_creating = run_programs, pauses, quiet, is_creating
        self._runs: Dict[str, None] = {}
        self._added_at = 0.0
        self._changed = threading.Condition()
        self._is_submitting = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="sbatch")

    def add(self, run_dir: str) -> None:
        with self._changed:
            self._runs[run_dir] = None
            self._added_at = time.monotonic()
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_busy(self) -> bool:
        with self._changed:
            return self._is_submitting or bool(self._runs)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_submitting = False
                self._changed.wait_for(lambda: bool(self._runs))
                self._is_submitting = True
            while time.monotonic() < self._added_at + self._quiet:
                time.sleep(self._quiet / 5)
                if self._is_creating():
                    self._added_at = time.monotonic()
            with self._changed:
                runs, self._runs = list(self._runs), {}
            for group in _by_script(runs):
                try:
                    self._submit(group)
                except Exception as bug:  # whatever it is, the runs' status must say so
                    for run in group:
                        log_traceback(run, "sbatch", bug)
                    _reject(group, str(bug) if isinstance(bug, OSError) else repr(bug))

    def _submit(self, runs: List[str]) -> None:
        limit, tries = MAX_ROWS, 0
        while runs:
            part = runs[:limit]
            submission = self._submit_part(part)
            if submission.array:
                runs, tries = runs[len(part) :], 0
            elif not submission.is_temporary:
                _reject(runs, submission.reason)
                return
            else:
                if submission.is_too_large:
                    limit = max(1, (len(part) + 1) // 2)
                pause = self._pauses[min(tries, len(self._pauses) - 1)]
                tries += 1
                for run in runs:
                    _write_waiting(run, "%s: %s; next try in %g s" % (job_file.REJECTED, submission.reason, pause))
                time.sleep(pause)
                runs = [run for run in runs if _is_unsubmitted(run)]

    def _submit_part(self, part: List[str]) -> Submission:
        lock = _job(part[0]).lock
        os.makedirs(os.path.dirname(lock), exist_ok=True)
        try:
            with file_lock(lock, True, _LOCK_TIMEOUT):
                self._find_submitted(part)
                runs = [run for run in part if _is_unsubmitted(run)]
                return self._sbatch(runs) if runs else Submission(array="none")
        except LockTimeout:
            return Submission(reason="another command's submission takes too long", is_temporary=True)

    def _find_submitted(self, runs: Sequence[str]) -> None:
        """Record the arrays that Slurm accepted although its answer was lost: a login node went down, a socket timed
        out."""
        jobs = {run: _job(run) for run in runs}
        for name in {job.name for job in jobs.values() if job.name and not job.array}:
            answer = self._run_programs({"": states.arrays_by_name_command(name)}, _TIMEOUT)[""]
            arrays = answer.out.split() if answer.code == 0 else []
            for run, job in jobs.items():
                if arrays and job.name == name:
                    job_file.write(run, replace(job, array=arrays[0]))

    def _sbatch(self, runs: List[str]) -> Submission:
        batch = os.path.relpath(runs[0], os.path.join(_job(runs[0]).home, "runs")).split(os.sep)[0]
        name = "%s-%s" % (batch, uuid.uuid4().hex[:8])
        jobs: Dict[str, SlurmJob] = {}
        for index, run in enumerate(runs):
            job = _job(run)
            if job.name:  # should Slurm start an earlier submission after all, it finds no rows
                shutil.rmtree(job.submission, ignore_errors=True)
            jobs[run] = job_file.write(run, replace(job, name=name, index=index))
        directory = jobs[runs[0]].submission
        os.makedirs(directory, exist_ok=True)
        _write(os.path.join(directory, "rows"), "".join("%s\n" % run for run in runs))
        _write(os.path.join(directory, job_file.SCRIPT), _script(runs[0]))
        answer = self._run_programs({"": sbatch_command(directory, name, len(runs))}, _TIMEOUT)[""]
        submission = parse_answer(answer.code, answer.out, answer.err)
        if submission.array:
            for run, job in jobs.items():
                job_file.write(run, replace(job, array=submission.array))
        return submission


def _write_waiting(run_dir: str, reason: str) -> None:
    """The status of a run that is not submitted yet. It has no other writer."""
    run = run_directory.RunDir(run_dir)
    status = run_directory.read_status(run)
    if status.has_ended:
        return
    if not status.exists:
        status = Status(run_directory.STATE_RUNNING, "waiting", started_at=time.time())
    run_directory.write_record(run.status, replace(status, waiting=(reason,), sequence=status.sequence + 1))


def _by_script(runs: Sequence[str]) -> List[List[str]]:
    """Runs with the same batch script are one array."""
    groups: Dict[str, List[str]] = {}
    for run in runs:
        if _is_unsubmitted(run):
            groups.setdefault(_script(run), []).append(run)
    return list(groups.values())


def _script(run: str) -> str:
    with open(os.path.join(run, job_file.SCRIPT), encoding="utf-8", errors="surrogateescape") as source:
        return source.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(text)


def _job(run: str) -> SlurmJob:
    job = job_file.read(run)
    assert job is not None  # the run was enqueued
    return job


def _is_unsubmitted(run: str) -> bool:
    """Whether it is neither submitted nor ended: it may have been cancelled, or removed, meanwhile."""
    job = job_file.read(run)
    has_ended = run_directory.read_status(run_directory.RunDir(run)).has_ended
    return job is not None and not job.array and not has_ended


def _reject(runs: Sequence[str], reason: str) -> None:
    outcome = JobOutcome(run_directory.END_EXIT, "Slurm rejects the job: %s" % reason, EXIT_BLOCKED)
    for run in runs:
        if _is_unsubmitted(run):
            record_outcome(run, outcome)
