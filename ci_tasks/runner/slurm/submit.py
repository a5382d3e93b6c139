"""Submitting runs: those of one batch script together, as one array, for as long as it takes.

Rows come one after another, so what comes close together is waited for. What Slurm rejects for now is offered again
with growing pauses, in smaller parts where there are too many of them; each run's status says so meanwhile. What it
rejects for good is blocked.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from dataclasses import replace
from typing import Callable, Dict, List, Sequence

from .. import layout
from ..code.objects import Busy, locked
from ..docker.adapter import EXIT_BLOCKED
from ..link.ask import ask
from . import job as jobs
from . import sbatch, states
from .concluding import conclude_as
from .fate import Fate
from .squeue import Ask

QUIET = 0.5  # seconds without another run, after which those that have come are submitted
PAUSES = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # seconds until they are offered again, the last one again and again
LARGEST = 500  # rows of one array; Slurm's own default limit is 1000
_PATIENCE = 150.0  # sbatch itself tries again for a while
_LOCK_PATIENCE = 300.0


def enqueue(run_dir: str, job: jobs.Job) -> None:
    """Put a run on record that is to be submitted: from now on it waits."""
    jobs.write(run_dir, job)
    say(run_dir, "Slurm: being submitted")


def say(run_dir: str, text: str) -> None:
    """What a run that Slurm does not have yet waits for. It has no other writer."""
    status = {
        "version": 1,
        "state": layout.STATE_RUNNING,
        "phase": "waiting",
        "waiting": [text],
        "started_at": time.time(),
        "log_bytes": 0,
    }
    known = layout.read_json(layout.RunDir(run_dir).status)
    if known.get("state") != layout.STATE_ENDED:
        layout.write_json(layout.RunDir(run_dir).status, {**status, **known, "waiting": [text]})


class Submitter:
    """Takes runs with `add`, and submits them in a thread of its own. `is_busy`: some are not in Slurm's hands yet."""

    def __init__(
        self,
        ask: Ask = ask,
        pauses: Sequence[float] = PAUSES,
        quiet: float = QUIET,
        is_coming: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_coming`: whether another run is being made just now."""
        self._ask, self._pauses, self._quiet, self._is_coming = ask, pauses, quiet, is_coming
        self._runs: Dict[str, None] = {}
        self._stirred = 0.0
        self._change = threading.Condition()
        self._at_work = False
        self._thread = threading.Thread(target=self._go_on, daemon=True, name="sbatch")

    def add(self, run_dir: str) -> None:
        with self._change:
            self._runs[run_dir] = None
            self._stirred = time.monotonic()
            if not self._thread.is_alive():
                self._thread.start()
            self._change.notify_all()

    @property
    def is_busy(self) -> bool:
        with self._change:
            return self._at_work or bool(self._runs)

    def _go_on(self) -> None:
        while True:
            with self._change:
                self._at_work = False
                self._change.wait_for(lambda: bool(self._runs))
                self._at_work = True
            while time.monotonic() < self._stirred + self._quiet:
                time.sleep(self._quiet / 5)
                if self._is_coming():
                    self._stirred = time.monotonic()
            with self._change:
                runs, self._runs = list(self._runs), {}
            for together in _by_script(runs):
                try:
                    self._submit(together)
                except Exception as bug:  # whatever it is, whoever waits must hear of it
                    _reject(together, str(bug) if isinstance(bug, OSError) else repr(bug))

    def _submit(self, runs: List[str]) -> None:
        at_once, tries = LARGEST, 0
        while runs:
            part = runs[:at_once]
            answer = self._offer(part)
            if answer.array:
                runs, tries = runs[len(part) :], 0
            elif not answer.passes:
                _reject(runs, answer.why)
                return
            else:
                if answer.smaller:
                    at_once = max(1, (len(part) + 1) // 2)
                pause = self._pauses[min(tries, len(self._pauses) - 1)]
                tries += 1
                for run in runs:
                    say(run, "%s: %s; offered again in %g s" % (jobs.REJECTED, answer.why, pause))
                time.sleep(pause)
                runs = [run for run in runs if _is_wanted(run)]

    def _offer(self, part: List[str]) -> sbatch.Answer:
        job = jobs.read(part[0])
        assert job is not None
        os.makedirs(os.path.dirname(job.lock), exist_ok=True)
        try:
            with locked(job.lock, True, _LOCK_PATIENCE):
                self._recognize(part)
                wanted = [run for run in part if _is_wanted(run)]
                return self._sbatch(wanted) if wanted else sbatch.Answer(array="none")
        except Busy:
            return sbatch.Answer(why="another command submits, and takes too long", passes=True)

    def _recognize(self, runs: Sequence[str]) -> None:
        """Those that Slurm has although nobody heard its answer: a login node went down, a socket timed out."""
        known = {run: jobs.read(run) for run in runs}
        names = {job.name for job in known.values() if job is not None and job.name and not job.array}
        for name in names:
            said = self._ask({"": states.named(name)}, _PATIENCE)[""]
            arrays = said["out"].split() if said["code"] == 0 else []
            for run, job in known.items():
                if arrays and job is not None and job.name == name:
                    jobs.write(run, replace(job, array=arrays[0]))

    def _sbatch(self, runs: List[str]) -> sbatch.Answer:
        first = jobs.read(runs[0])
        assert first is not None
        batch = os.path.relpath(runs[0], os.path.join(first.home, "runs")).split(os.sep)[0]
        name = "%s-%s" % (batch, uuid.uuid4().hex[:8])
        submitted: Dict[str, jobs.Job] = {}
        for index, run in enumerate(runs):
            job = jobs.read(run)
            assert job is not None
            if job.name:  # should Slurm bring an earlier submission to light yet, its rows are nowhere to be found
                shutil.rmtree(job.submission, ignore_errors=True)
            submitted[run] = jobs.write(run, replace(job, name=name, index=index))
        directory = submitted[runs[0]].submission
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, "rows"), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.writelines("%s\n" % run for run in runs)
        with open(os.path.join(directory, jobs.SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(_script(runs[0]))
        said = self._ask({"sbatch": sbatch.words(directory, name, len(runs))}, _PATIENCE)["sbatch"]
        answer = sbatch.read(said["code"], said["out"], said["err"])
        if answer.array:
            for run, job in submitted.items():
                jobs.write(run, replace(job, array=answer.array))
        return answer


def _by_script(runs: Sequence[str]) -> List[List[str]]:
    """Those that want the same of Slurm are one array."""
    found: Dict[str, List[str]] = {}
    for run in runs:
        if _is_wanted(run):
            found.setdefault(_script(run), []).append(run)
    return list(found.values())


def _script(run: str) -> str:
    with open(os.path.join(run, jobs.SCRIPT), encoding="utf-8", errors="surrogateescape") as source:
        return source.read()


def _is_wanted(run: str) -> bool:
    """Whether it is neither submitted nor ended: somebody may have cancelled it, or removed it, meanwhile."""
    job = jobs.read(run)
    ended = layout.read_json(layout.RunDir(run).status).get("state") == layout.STATE_ENDED
    return job is not None and not job.array and not ended


def _reject(runs: Sequence[str], why: str) -> None:
    ended = Fate(layout.END_EXIT, "Slurm takes no such job: %s" % why, EXIT_BLOCKED)
    for run in runs:
        if _is_wanted(run):
            conclude_as(run, ended)
