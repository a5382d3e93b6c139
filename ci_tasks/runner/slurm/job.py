"""What is known of a run's job: `slurm.json` of its run directory on the shared file system, and what is beside it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from .. import layout

SCRIPT = "batch.sh"  # what sbatch gets
REJECTED = "Slurm takes no more just now"  # how the status of a run begins that is to be submitted again
_JOB, _SECRETS, _ATTEMPT, _LOCK = "slurm.json", "secrets.json", "attempt.json", "slurm.lock"


@dataclasses.dataclass(frozen=True)
class Job:
    """`name` and `index` are known before `array`, the number that Slurm gave: a client, or a login node, may go away
    in between. `store` has the objects of `parts`, the run's checkout."""

    home: str
    store: str = ""
    parts: Tuple[Mapping[str, str], ...] = ()
    name: str = ""
    index: int = 0
    array: str = ""

    @property
    def id(self) -> str:
        """As squeue and scancel call it; empty as long as Slurm does not have it."""
        return "%s_%d" % (self.array, self.index) if self.array else ""

    @property
    def submission(self) -> str:
        """The directory of what was submitted together."""
        return os.path.join(self.home, "slurm", self.name)

    @property
    def lock(self) -> str:
        """Whoever has it submits, or says that a run is not to be submitted."""
        return os.path.join(self.home, "locks", "slurm")

    @property
    def output(self) -> str:
        """What the batch script wrote that is not the runner's."""
        return os.path.join(self.submission, "%d.out" % self.index)


def read(run_dir: str) -> Optional[Job]:
    """None for a run that is no job of Slurm's."""
    found = layout.read_json(os.path.join(run_dir, _JOB))
    if not found:
        return None
    known = {field.name for field in dataclasses.fields(Job)}
    values = {name: value for name, value in found.items() if name in known}
    return Job(**{**values, "parts": tuple(values.get("parts") or ())})


def write(run_dir: str, job: Job) -> Job:
    layout.write_json(os.path.join(run_dir, _JOB), dataclasses.asdict(job))
    return job


@contextmanager
def leaving(run_dir: str) -> Iterator[None]:
    """While a run is removed: its job is over when that begins, and what its submission left goes with its last run."""
    job = read(run_dir)
    if job is not None:
        from .ending import leave

        leave(run_dir, job)
    yield
    if job is not None and job.name:
        try:
            with open(os.path.join(job.submission, "rows"), encoding="utf-8", errors="surrogateescape") as source:
                rows = source.read().splitlines()
        except OSError:
            return
        if not any(os.path.exists(row) for row in rows):
            shutil.rmtree(job.submission, ignore_errors=True)


def lock_of(run_dir: str) -> str:
    """Whoever has it says how the run ended."""
    return os.path.join(run_dir, _LOCK)


# -- secrets: in a file that only their owner can read, since Slurm would keep an environment in its controller -----


def write_secrets(run_dir: str, values: Mapping[str, str]) -> None:
    if not values:
        return
    handle = os.open(os.path.join(run_dir, _SECRETS), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        json.dump(dict(values), out)


def read_secrets(run_dir: str) -> Dict[str, str]:
    return {str(name): str(value) for name, value in layout.read_json(os.path.join(run_dir, _SECRETS)).items()}


def forget_secrets(run_dir: str) -> None:
    """The run has ended, and needs them no more."""
    try:
        os.unlink(os.path.join(run_dir, _SECRETS))
    except OSError:
        pass


# -- attempts: a job that was requeued runs again, and on another node its first runner may still be at work -------


def begin_attempt(run_dir: str, mark: Mapping[str, Any]) -> None:
    layout.write_json(os.path.join(run_dir, _ATTEMPT), dict(mark))


def attempt(run_dir: str) -> Dict[str, Any]:
    return layout.read_json(os.path.join(run_dir, _ATTEMPT))
