"""The states of all jobs of one connection: one squeue for all of them every few seconds.

Jobs that squeue has forgotten are looked up by sacct. Queries that fail are repeated, and change nothing: only what
Slurm says counts.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import Callable, Dict, Mapping, Optional, Sequence

from ..programs import ask
from ..records import QueryAnswer
from . import states
from .states import SlurmJobState

RunPrograms = Callable[[Mapping[str, Sequence[str]], float], Dict[str, QueryAnswer]]

INTERVAL = 2.0  # seconds between two queries
TIMEOUT = 60.0  # seconds for one of Slurm's programs: a busy controller delays its answers
UNKNOWN_AFTER = 60.0  # seconds until a job that Slurm does not know counts as gone: accounting lags behind
_IDLE = 30.0  # seconds after which a job that nobody asks for is not queried any more


class SqueuePoller:
    """`state` never blocks: it returns the newest known state. `problem` is why Slurm does not answer."""

    def __init__(
        self, run_programs: RunPrograms = ask, interval: float = INTERVAL, unknown_after: float = UNKNOWN_AFTER
    ) -> None:
        self.problem = ""
        self._run_programs, self._interval, self._unknown_after = run_programs, interval, unknown_after
        self._requested: Dict[str, float] = {}
        self._known: Dict[str, SlurmJobState] = {}
        self._over_since: Dict[str, float] = {}
        self._missing_since: Dict[str, float] = {}
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def state(self, job: str) -> Optional[SlurmJobState]:
        """None as long as nothing is known of the job."""
        with self._lock:
            self._requested[job] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="squeue")
                self._thread.start()
            return self._known.get(job)

    def seconds_over(self, job: str) -> float:
        """For how long the job has been known to be over."""
        with self._lock:
            since = self._over_since.get(job)
        return time.monotonic() - since if since is not None else 0.0

    def is_missing(self, job: str) -> bool:
        """Whether the last answer did not know the job."""
        with self._lock:
            return job in self._missing_since

    def query(self, jobs: Sequence[str]) -> Dict[str, SlurmJobState]:
        """Ask Slurm now. Jobs that it does not know are missing, all of them where it does not answer."""
        if not jobs:
            return {}
        states = self._squeue(jobs)
        if states is None:
            return {}
        missing = [job for job in jobs if job not in states]
        if missing:
            states.update(self._history(missing))
        return {job: state for job, state in states.items() if job in jobs}

    def may_run(self, jobs: Sequence[str]) -> Dict[str, bool]:
        """{job: whether it is not over}; True for all where Slurm does not answer."""
        known = self.query(jobs)
        return {job: bool(self.problem) or (job in known and not known[job].is_over) for job in jobs}

    def _run(self) -> None:
        while True:
            try:
                self._refresh()
            except Exception as bug:  # the next query may succeed
                self.problem = "%r (%s)" % (bug, traceback.extract_tb(bug.__traceback__)[-1])
            time.sleep(self._interval)

    def _refresh(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._requested = {job: at for job, at in self._requested.items() if now - at < _IDLE}
            jobs = [job for job in self._requested if job not in self._over_since]
        current = self.query(jobs)
        now = time.monotonic()
        with self._lock:
            for job in jobs:
                if job in current:
                    self._missing_since.pop(job, None)
                elif self.problem or now - self._missing_since.setdefault(job, now) <= self._unknown_after:
                    continue
                self._known[job] = current.get(job) or SlurmJobState(states.UNKNOWN)
                if self._known[job].is_over:
                    self._over_since[job] = now

    def _squeue(self, jobs: Sequence[str]) -> Optional[Dict[str, SlurmJobState]]:
        """None where Slurm does not answer."""
        answer = self._answer(states.squeue_command(jobs))
        if answer.code == 0 or states.are_forgotten(answer.err):
            self.problem = ""
            return states.parse_squeue(answer.out)
        self.problem = states.last_line(answer.err) or "squeue ended with %s" % answer.code
        return None

    def _history(self, jobs: Sequence[str]) -> Dict[str, SlurmJobState]:
        answer = self._answer(states.sacct_command(jobs))
        return states.parse_sacct(answer.out) if answer.code == 0 else {}

    def _answer(self, command: Sequence[str]) -> QueryAnswer:
        return self._run_programs({"": command}, TIMEOUT)[""]
