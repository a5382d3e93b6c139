"""How jobs stand, for everybody of one connection who wants to know: one squeue for all of them every few seconds.

What squeue has forgotten, sacct is asked for; where there is no accounting, the completion log, if it can be read.
Asking changes nothing, and what cannot be answered just now is asked again: only what Slurm said counts.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from ..link.ask import ask
from . import states
from .states import State

Ask = Callable[[Mapping[str, Sequence[str]], float], Dict[str, Dict[str, Any]]]

EVERY = 2.0  # seconds between two questions
PATIENCE = 60.0  # seconds that a program of Slurm's may take: a busy controller lets them wait
UNKNOWN_AFTER = 60.0  # seconds for which nobody knows a job, until it counts as gone: accounting lags behind
_IDLE = 30.0  # seconds after which a job that nobody asks for is asked for no more
_LARGEST_LOG = 1 << 26


class Queue:
    """`state` never waits: it gives what was heard last. `problem` is why Slurm does not answer."""

    def __init__(self, ask: Ask = ask, every: float = EVERY, unknown_after: float = UNKNOWN_AFTER) -> None:
        self.problem = ""
        self._ask, self._every, self._unknown_after = ask, every, unknown_after
        self._wanted: Dict[str, float] = {}
        self._known: Dict[str, State] = {}
        self._over_since: Dict[str, float] = {}
        self._missed: Dict[str, float] = {}
        self._change = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def state(self, job: str) -> Optional[State]:
        """None as long as nothing is known of the job."""
        with self._change:
            self._wanted[job] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._go_on, daemon=True, name="squeue")
                self._thread.start()
            return self._known.get(job)

    def over_for(self, job: str) -> float:
        """Seconds since it was heard that the job is over."""
        with self._change:
            since = self._over_since.get(job)
        return time.monotonic() - since if since is not None else 0.0

    def look(self, jobs: Sequence[str]) -> Dict[str, State]:
        """Ask now. Jobs that nobody knows are missing, all of them where Slurm does not answer."""
        if not jobs:
            return {}
        found = self._squeue(jobs)
        if found is None:
            return {}
        missing = [job for job in jobs if job not in found]
        if missing:
            found.update(self._history(missing))
        return {job: state for job, state in found.items() if job in jobs}

    def _go_on(self) -> None:
        while True:
            try:
                self._refresh()
            except Exception as bug:  # the next time it may do
                self.problem = repr(bug)
            time.sleep(self._every)

    def _refresh(self) -> None:
        now = time.monotonic()
        with self._change:
            self._wanted = {job: asked for job, asked in self._wanted.items() if now - asked < _IDLE}
            jobs = [job for job in self._wanted if job not in self._over_since]
        found = self.look(jobs)
        now = time.monotonic()
        with self._change:
            for job in jobs:
                state = found.get(job) or self._gone(job, now)
                if state is None:
                    continue
                self._known[job] = state
                if job in found:
                    self._missed.pop(job, None)
                if state.is_over:
                    self._over_since[job] = now

    def _gone(self, job: str, now: float) -> Optional[State]:
        """A job that nobody knows, for too long; while Slurm does not answer, nobody is to know."""
        if self.problem:
            return None
        since = self._missed.setdefault(job, now)
        return State(states.UNKNOWN) if now - since > self._unknown_after else None

    def _squeue(self, jobs: Sequence[str]) -> Optional[Dict[str, State]]:
        """None where Slurm does not answer."""
        said = self._put(states.squeue({job.split("_")[0] for job in jobs}))
        if said["code"] == 0 or states.forgot(said["err"]):
            self.problem = ""
            return states.parse_squeue(said["out"])
        self.problem = _last(said["err"]) or "squeue ended with %s" % said["code"]
        return None

    def _history(self, jobs: Sequence[str]) -> Dict[str, State]:
        said = self._put(states.sacct(jobs))
        found = states.parse_sacct(said["out"]) if said["code"] == 0 else {}
        missing = [job for job in jobs if job not in found]
        if missing and said["code"] != 0:
            found.update(self._completion_log(missing))
        return found

    def _completion_log(self, jobs: Sequence[str]) -> Dict[str, State]:
        path = states.completion_log(states.parse_config(self._put(states.CONFIG)["out"]))
        if not path:
            return {}
        try:
            with open(path, "rb") as source:
                size = source.seek(0, 2)
                source.seek(max(0, size - _LARGEST_LOG))
                known = states.parse_jobcomp(source.read().decode(errors="replace"))
        except OSError:
            return {}
        return {job: known[job] for job in jobs if job in known}

    def _put(self, argv: Sequence[str]) -> Dict[str, Any]:
        return self._ask({"": argv}, PATIENCE)[""]


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
