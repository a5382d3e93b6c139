"""A run's Slurm job: `slurm.json` of its run directory on the shared file system, the files beside it, and the end of
the run as Slurm knows it, with a line in its log where its agent wrote none, or another."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from typing import Iterable, Mapping, Optional

from .. import run_directory
from ..codec import encode
from ..exit_gate import mask_run, masked_record
from ..file_lock import file_lock
from ..files import pieces_of
from ..log_file import RunLog
from ..probe.evidence import collect_left_evidence
from ..records import Secrets, SlurmAllocation, SlurmJob, SlurmStart, Status
from .states import JobOutcome, SlurmJobState, claimed_code, is_final, job_outcome, last_line

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


# -- secrets: in a file that only their owner can read, since Slurm would keep an environment in its controller -------


def _secrets(run_dir: str) -> str:
    return os.path.join(run_dir, "secrets.json")


def write_secrets(run_dir: str, values: Mapping[str, str]) -> None:
    if values:
        handle = os.open(_secrets(run_dir), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as out:
            out.write(json.dumps(encode(Secrets(values))))


def read_secrets(run_dir: str) -> Mapping[str, str]:
    return (run_directory.read_record(Secrets, _secrets(run_dir)) or Secrets()).values


def delete_secrets(run_dir: str) -> None:
    """The run has ended, and needs them no more."""
    with suppress(OSError):
        os.unlink(_secrets(run_dir))


# -- attempts: a requeued job runs again, while its first agent may still run on another node -------------------------


def attempt_path(run_dir: str) -> str:
    return os.path.join(run_dir, "attempt.json")


def write_attempt(run_dir: str, start: SlurmStart) -> None:
    run_directory.write_record(attempt_path(run_dir), start)


def read_attempt(run_dir: str) -> Optional[SlurmStart]:
    return run_directory.read_record(SlurmStart, attempt_path(run_dir))


# -- the end: the run has no processes any more, as Slurm says, or Slurm never had the job ----------------------------


def record_end(run_dir: str, end: SlurmJobState | JobOutcome) -> Status:
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
        if outcome is not None and not (status.concluded and outcome.sentence == status.error):
            status = _ended(status, outcome, AppendedLog(paths.log, values))
        if outcome is not None:
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


def _ended(status: Status, outcome: JobOutcome, log: AppendedLog) -> Status:
    log.write_line(outcome.line)
    log.close()
    return replace(
        status,
        state=run_directory.STATE_ENDED,
        phase="ended",
        end=outcome.end,
        exit_code=outcome.exit_code,
        error=outcome.sentence,
        ended_at=status.heartbeat_at or time.time(),  # the clock of the node that began it, not this machine's
        log_bytes=log.bytes,
        log_error=status.log_error or log.error,
        log_sha256=log.sha256,
        waiting=(),
    )


class AppendedLog(RunLog):
    """The log of a run that already has one: of a requeued job, or one whose agent could not say how it ended. Count
    and digest include what the file already contains. Raises OSError."""

    def __init__(self, path: str, secrets: Iterable[str] = ()) -> None:
        super().__init__(path, secrets)
        self._last = b"\n"
        for piece in pieces_of(path):
            self._digest.update(piece)
            self.bytes += len(piece)
            self._last = piece[-1:]

    def write_line(self, text: str) -> None:
        """A line of its own; call it before `write`."""
        line = " ".join(text.split()) + "\n"
        self.write((b"" if self._last == b"\n" else b"\n") + line.encode("utf-8", "backslashreplace"))
        self._last = b"\n"
