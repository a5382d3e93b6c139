"""A run's Slurm job: `slurm.json` of its run directory on the shared file system, the files beside it, and the end of
the run as Slurm knows it, with a line in its log where its agent wrote none, or another."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from typing import Iterable, Mapping, Optional

from .. import run_directory
from ..exit_gate import mask_run, masked_record
from ..file_lock import file_lock
from ..files import pieces_of
from ..log_file import RunLog
from ..probe.evidence import collect_left_evidence
from ..records import Secrets, SlurmAllocation, SlurmJob, SlurmStart, Status
from .states import Outcome, SlurmJobState, claimed_code, is_final, job_outcome, last_line

SCRIPT = "batch.sh"  # the script for sbatch
REJECTED = "Slurm accepts no more jobs now"  # start of the status of a run that will be submitted again
_LOCK_TIMEOUT = 20.0
_MAX_OUTPUT = 4096


def path(run_dir: str) -> str:
    return os.path.join(run_dir, "slurm.json")


def read(run_dir: str) -> Optional[SlurmJob]:
    """None for a run that is not a Slurm job."""
    return run_directory.read_record(SlurmJob, path(run_dir))


def write(run_dir: str, job: SlurmJob) -> SlurmJob:
    run_directory.write_record(path(run_dir), job)
    return job


def status_of(run_dir: str) -> Status:
    return run_directory.read_status(run_directory.RunDir(run_dir))


def attempt_path(run_dir: str) -> str:
    """Which agent has the run: a requeued job runs again, while its first agent may still run on another node."""
    return os.path.join(run_dir, "attempt.json")


def read_attempt(run_dir: str) -> Optional[SlurmStart]:
    return run_directory.read_record(SlurmStart, attempt_path(run_dir))


def secrets_path(run_dir: str) -> str:
    """Only its owner can read it. Slurm would keep an environment in its controller. It goes with the run's end."""
    return os.path.join(run_dir, "secrets.json")


def read_secrets(run_dir: str) -> Mapping[str, str]:
    return (run_directory.read_record(Secrets, secrets_path(run_dir)) or Secrets()).values


def delete_secrets(run_dir: str) -> None:
    with suppress(OSError):
        os.unlink(secrets_path(run_dir))


# -- the end: the run has no processes any more, as Slurm says, or Slurm never had the job ----------------------------


def record_end(run_dir: str, end: SlurmJobState | Outcome) -> Status:
    """Write the end of a run whose job is over, or that was never submitted. Returns its status, which is final from
    now on."""
    paths, job = run_directory.RunDir(run_dir), read(run_dir)
    with file_lock(os.path.join(run_dir, "slurm.lock"), True, _LOCK_TIMEOUT):
        before = status = run_directory.read_status(paths)
        values = [value for value in read_secrets(run_dir).values() if value]
        if isinstance(end, SlurmJobState):
            outcome = job_outcome(end, status, _last_output(run_dir))
            allocation = status.slurm or SlurmAllocation(job.id or None if job else None, end.node or None)
            claimed = claimed_code(end, status)
            if claimed is None and status.concluded:
                claimed = allocation.claimed
            status = replace(status, slurm=replace(allocation, exit_code=end.exit_code, claimed=claimed))
        else:
            outcome = None if is_final(status) else end
        if outcome is not None:
            if not (status.concluded and outcome[1] == status.error):
                status = _ended(status, outcome, AppendedLog(paths.log, values))
            collect_left_evidence(paths, values)
        if values and not status.masked:  # what an agent that died could not
            status = replace(masked_record(status, values), masked=True)
            shutil.rmtree(mask_run(paths, values) or os.devnull, ignore_errors=True)
        status = replace(status, concluded=True)
        if status != before:
            status = replace(status, sequence=status.sequence + 1)
            run_directory.write_record(paths.status, status)
    delete_secrets(run_dir)
    return status


def _last_output(run_dir: str) -> str:
    """The last line of what the batch script printed."""
    output = b""
    for piece in pieces_of(os.path.join(run_dir, run_directory.SLURM_OUTPUT)):
        output = (output + piece)[-_MAX_OUTPUT:]
    return last_line(output.decode(errors="replace"))


def _ended(status: Status, outcome: Outcome, log: AppendedLog) -> Status:
    end, why, code = outcome
    log.write_line((run_directory.BLOCKED if code == run_directory.EXIT_BLOCKED else "ci-tasks: ") + why)
    log.close()
    # The clock is that of the node that began the run, not this machine's.
    now, log_error = status.heartbeat_at or time.time(), status.log_error or log.error
    status = replace(
        status, state=run_directory.STATE_ENDED, phase="ended", end=end, exit_code=code, error=why, ended_at=now
    )
    return replace(status, log_bytes=log.bytes, log_error=log_error, log_sha256=log.sha256, waiting=())


class AppendedLog(RunLog):
    """The log of a run that already has one: of a requeued job, or one whose agent could not say how it ended. Count
    and digest include what the file already contains. Raises OSError."""

    def __init__(self, path: str, secrets: Iterable[str] = ()) -> None:
        super().__init__(path, secrets)
        last = b"\n"
        for piece in pieces_of(path):
            self._digest.update(piece)
            self.bytes += len(piece)
            last = piece[-1:]
        self._start = b"" if last == b"\n" else b"\n"

    def write_line(self, text: str) -> None:
        """A line of its own; call it before `write`."""
        self.write(self._start + (" ".join(text.split()) + "\n").encode("utf-8", "backslashreplace"))
