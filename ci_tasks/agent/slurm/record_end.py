"""Writing the end of a run that its agent could not write, or not rightly: a line in its log, and its status.

The run has no processes any more: Slurm says so, or never had the job.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from typing import Callable, List, Optional

from .. import run_directory
from ..exit_gate import mask_run, masked_record
from ..file_lock import file_lock
from ..records import SlurmAllocation, Status
from . import job_file, states
from .appended_log import AppendedLog
from .outcome import JobOutcome, is_final, job_outcome
from .states import SlurmJobState

_LOCK_TIMEOUT = 20.0
_MAX_OUTPUT = 4096


def record_job_end(run_dir: str, state: SlurmJobState) -> Status:
    """Write the end of a run whose job is over. Returns its status, which is final from now on."""
    job = job_file.read(run_dir)
    output = _last_line(job.output) if job is not None else ""
    place = SlurmAllocation(job.id or None, state.node or None) if job is not None else None
    return _record(run_dir, lambda status: job_outcome(state, status, output), place)


def record_outcome(run_dir: str, outcome: JobOutcome) -> Status:
    """The same for a run that Slurm never had."""
    return _record(run_dir, lambda status: outcome)


def _record(
    run_dir: str, decide: Callable[[Status], Optional[JobOutcome]], place: Optional[SlurmAllocation] = None
) -> Status:
    paths = run_directory.RunDir(run_dir)
    with file_lock(job_file.end_lock(run_dir), True, _LOCK_TIMEOUT):
        status = run_directory.read_status(paths)
        if is_final(status):
            return status
        values = [value for value in job_file.read_secrets(run_dir).values() if value]
        outcome = decide(status)
        if outcome is not None:
            status = _ended(status, outcome, AppendedLog(paths.log, values))
        if values and not status.masked:
            status = replace(masked_record(status, values), masked=True)
            _mask_files(paths, values)
        status = replace(status, slurm=status.slurm or place, concluded=True, sequence=status.sequence + 1)
        run_directory.write_record(paths.status, status)
    job_file.delete_secrets(run_dir)
    return status


def _mask_files(paths: run_directory.RunDir, values: List[str]) -> None:
    """What an agent that died could not."""
    old = mask_run(paths, values)
    if old:
        shutil.rmtree(old, ignore_errors=True)


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


def _last_line(path: str) -> str:
    try:
        with open(path, "rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - _MAX_OUTPUT))
            return states.last_line(source.read().decode(errors="replace"))
    except OSError:
        return ""
