"""A run's Slurm job: `slurm.json` of its run directory on the shared file system, and the files beside it."""

from __future__ import annotations

import json
import os
from typing import Mapping, Optional

from .. import run_directory
from ..codec import encode
from ..records import Secrets, SlurmJob, SlurmStart

SCRIPT = "batch.sh"  # the script for sbatch
REJECTED = "Slurm accepts no more jobs now"  # start of the status of a run that will be submitted again
_JOB, _SECRETS, _ATTEMPT, _END_LOCK = "slurm.json", "secrets.json", "attempt.json", "slurm.lock"


def read(run_dir: str) -> Optional[SlurmJob]:
    """None for a run that is not a Slurm job."""
    return run_directory.read_record(SlurmJob, path(run_dir))


def path(run_dir: str) -> str:
    return os.path.join(run_dir, _JOB)


def write(run_dir: str, job: SlurmJob) -> SlurmJob:
    run_directory.write_record(path(run_dir), job)
    return job


def end_lock(run_dir: str) -> str:
    """The lock file under which the end of the run is written."""
    return os.path.join(run_dir, _END_LOCK)


# -- secrets: in a file that only their owner can read, since Slurm would keep an environment in its controller -----


def write_secrets(run_dir: str, values: Mapping[str, str]) -> None:
    if not values:
        return
    handle = os.open(os.path.join(run_dir, _SECRETS), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(json.dumps(encode(Secrets(values))))


def read_secrets(run_dir: str) -> Mapping[str, str]:
    return (run_directory.read_record(Secrets, os.path.join(run_dir, _SECRETS)) or Secrets()).values


def delete_secrets(run_dir: str) -> None:
    """The run has ended, and needs them no more."""
    try:
        os.unlink(os.path.join(run_dir, _SECRETS))
    except OSError:
        pass


# -- attempts: a requeued job runs again, while its first agent may still run on another node ----------------------


def write_attempt(run_dir: str, start: SlurmStart) -> None:
    run_directory.write_record(attempt_path(run_dir), start)


def read_attempt(run_dir: str) -> Optional[SlurmStart]:
    return run_directory.read_record(SlurmStart, attempt_path(run_dir))


def attempt_path(run_dir: str) -> str:
    return os.path.join(run_dir, _ATTEMPT)
