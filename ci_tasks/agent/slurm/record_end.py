"""Writing the end of a run as Slurm knows it, with a line in its log where its agent wrote none, or another.

The run has no processes any more: Slurm says so, or never had the job.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from typing import Callable, Iterable, List, Optional, Tuple

from .. import run_directory
from ..exit_gate import mask_run, masked_record
from ..file_lock import file_lock
from ..files import open_file
from ..log_file import RunLog
from ..probe.evidence import collect_left_evidence
from ..records import SlurmAllocation, Status
from . import job_file, states
from .outcome import JobOutcome, claimed_code, is_final, job_outcome
from .states import SlurmJobState

_LOCK_TIMEOUT = 20.0
_MAX_OUTPUT = 4096
_CHUNK = 1 << 20


def record_job_end(run_dir: str, state: SlurmJobState) -> Status:
    """Write the end of a run whose job is over. Returns its status, which is final from now on."""
    job = job_file.read(run_dir)
    output = _last_line(os.path.join(run_dir, run_directory.SLURM_OUTPUT))
    place = SlurmAllocation(job.id or None, state.node or None) if job is not None else None

    def verify(status: Status) -> Tuple[Optional[JobOutcome], Optional[SlurmAllocation]]:
        at = status.slurm or place
        if at is not None:
            claimed = claimed_code(state, status)
            before = at.claimed if status.concluded else None
            at = replace(at, exit_code=state.exit_code, claimed=before if claimed is None else claimed)
        return job_outcome(state, status, output), at

    return _record(run_dir, verify)


def record_outcome(run_dir: str, outcome: JobOutcome) -> Status:
    """The same for a run that Slurm never had."""
    return _record(run_dir, lambda status: (None if is_final(status) else outcome, status.slurm))


def _record(run_dir: str, decide: Callable[[Status], Tuple[Optional[JobOutcome], Optional[SlurmAllocation]]]) -> Status:
    paths = run_directory.RunDir(run_dir)
    with file_lock(job_file.end_lock(run_dir), True, _LOCK_TIMEOUT):
        before = status = run_directory.read_status(paths)
        values = [value for value in job_file.read_secrets(run_dir).values() if value]
        outcome, allocation = decide(status)
        is_recorded = status.concluded and outcome is not None and outcome.sentence == status.error
        if outcome is not None and not is_recorded:
            status = _ended(status, outcome, AppendedLog(paths.log, values))
        if outcome is not None:
            collect_left_evidence(paths, values)
        if values and not status.masked:
            status = replace(masked_record(status, values), masked=True)
            _mask_files(paths, values)
        status = replace(status, slurm=allocation, concluded=True)
        if status != before:
            status = replace(status, sequence=status.sequence + 1)
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
        with open_file(path) as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - _MAX_OUTPUT))
            return states.last_line(source.read().decode(errors="replace"))
    except OSError:
        return ""


class AppendedLog(RunLog):
    """The log of a run that already has one: of a requeued job, or one whose agent could not say how it ended. Count
    and digest include what the file already contains. Raises OSError."""

    def __init__(self, path: str, secrets: Iterable[str] = ()) -> None:
        super().__init__(path, secrets)
        self._last = b"\n"
        with open(path, "rb") as source:
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                self._digest.update(chunk)
                self.bytes += len(chunk)
                self._last = chunk[-1:]

    def write_line(self, text: str) -> None:
        """A line of its own; call it before `write`."""
        line = " ".join(text.split()) + "\n"
        self.write((b"" if self._last == b"\n" else b"\n") + line.encode("utf-8", "backslashreplace"))
        self._last = b"\n"
