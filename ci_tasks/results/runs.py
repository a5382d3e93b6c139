"""A run as its directory has it: whether it is over, what its log says, its events, its times by our clock; and
record.json, as it is written. `load` reads it.

A log is read once, and what it says is kept beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from ci_tasks import __version__, safe_output
from ci_tasks.agent import processes, run_directory
from ci_tasks.agent.codec import from_json, masked_record, to_json
from ci_tasks.agent.files import content_of, open_file, read_file, replace_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import (
    Deviation,
    DockerInvocation,
    Environment,
    Event,
    RunDescription,
    SlurmAllocation,
    Status,
    read_events,
)
from ci_tasks.agent.run_directory import ACTIVATED, RunDir, read_description, read_remote, read_status, write_record
from ci_tasks.logs.lines import LineReader
from ci_tasks.logs.reading import LogFacts, LogReading, line_summary, read_log
from ci_tasks.records import FAILED, NO_EVIDENCE, Attempt, LogDigest, RunEnvironment, RunRecord, Timings, Verdict
from ci_tasks.registry import metric_formats
from ci_tasks.results.store import read_state_if_readable

READING = "reading.json"  # beside the log: what it says
_PIECE = 1 << 18
_LARGEST_READING = 1 << 23  # bytes; what would be larger is read again
_ENDS = b"##[endgroup]", b"::endgroup::"  # of groups in GitHub's log
_TAIL = 1 << 14  # bytes: a line of metrics alone may have several thousand
LARGEST_EVENTS = 1 << 22  # bytes; the job can write there too
_CI_GOES_ON = "; CI's run would not fail (continue-on-error)"
_FAR = 1e12  # seconds since 1970; no clock says so
_WAIT_ENDS = ("gpus", "step", "cancelled", "timeout", "ended")


def is_over(run: RunDir) -> bool:
    """Whether the run has ended, and all of it is here: one of another host may have ended with its log still there."""
    remote = read_remote(run)
    if remote is not None:
        return remote.complete
    status = run_directory.read_status_if_readable(run)
    return not processes.is_alive(run, status) and (status.exists or not pending_phase(run))


def pending_phase(run: RunDir) -> str:
    """For a run that has not started, what its command does now; empty if no command will start it."""
    batch = read_state_if_readable(os.path.dirname(run.path))
    return batch.phase if batch and batch.is_active and not os.path.exists(run.record) else ""


# -- its log -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _KeptReading:
    """`log` says which log was read, by which version of this program."""

    log: tuple[str, ...]
    reading: LogReading


def read_run_log(path: str, *more: LineReader) -> LogReading:
    """Read the log of an ended run once, `more` readers too, and keep what it says beside it. Of a log that is missing,
    nothing."""
    try:
        with open_file(path) as source:
            log = _identity(os.fstat(source.fileno()))
            reading = read_log(iter(lambda: source.read(_PIECE), b""), *more)
    except OSError:
        return LogReading(LogFacts())
    with suppress(OSError, TypeError):  # a full disk, or metrics that are no JSON (nan): it is read again
        content = to_json(_KeptReading(log, reading)).encode("utf-8", "backslashreplace")
        if len(content) <= _LARGEST_READING:
            replace_file(_kept_beside(path), content)
    return reading


def reading_of(path: str) -> LogReading:
    """The same for a log that may be read already, or may grow. Nothing is written. Raises OSError."""
    with open_file(path) as source:
        status = os.fstat(source.fileno())
        with suppress(OSError, ValueError):
            kept = from_json(_KeptReading, read_file(_kept_beside(path), _LARGEST_READING), where=READING)
            if kept.log == _identity(status):
                return kept.reading
        left = status.st_size  # it may be growing
        return read_log(source.read(min(_PIECE, left - at)) for at in range(0, left, _PIECE))


def _identity(status: os.stat_result) -> tuple[str, ...]:
    return (__version__, str(status.st_size), str(status.st_mtime_ns))


def _kept_beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), READING)


def last_line(run: RunDir) -> str:
    """The last line of a log that says something, safe for a terminal; a line of metrics in short."""
    try:
        with open_file(run.log) as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    formats = metric_formats()
    texts = (line_summary(line, formats) for line in reversed(lines) if not line.startswith(_ENDS))
    return next((text for text in texts if any(char.isalnum() for char in text)), "")


# -- events and times, by the clock of the run's host ------------------------------------------------------------------


def events_of(run: RunDir) -> list[Event]:
    """What happened in a run; a line that is none is left out."""
    return read_events(content_of(run.events, LARGEST_EVENTS).decode("utf-8", "replace"))


def seconds_since_start(run: RunDir) -> float | None:
    """None for a run that has not started."""
    started = read_status(run).started_at
    return None if started is None else max(0.0, time.time() - started)


def queue_seconds(events: Iterable[Event]) -> float | None:
    """How long a run waited for GPUs and host-wide locks: the sum of all waits in seconds, each ended by what it was
    for, or by the run; 0 if it did not wait, None if its events do not say."""
    begun, since, total = False, None, 0.0
    for event in events:
        if not 0 < event.t < _FAR:
            continue
        begun = begun or event.event == "started"
        if event.event == "waiting":
            since = event.t if since is None else since
        elif since is not None and event.event in _WAIT_ENDS:
            total, since = total + max(0.0, event.t - since), None
    return round(total, 3) if begun and since is None else None


# -- writing -----------------------------------------------------------------------------------------------------------


def record_not_started(run: RunDir, status: str, reason: str) -> RunRecord:
    """The record of a run that never began: blocked, or cancelled while it waited; or that is not there any more."""
    os.makedirs(run.path, exist_ok=True)  # a job on this machine may take its directory away
    plan = RunDescription()
    with suppress(OSError, ValueError):  # it may also have changed the plan
        plan = read_description(run)
    return save_record(run, new_record(plan, Status(), Verdict(status, reason, NO_EVIDENCE)))


def with_attempts(run: RunDir, record: RunRecord, earlier: Sequence[Attempt], *, stopped: bool) -> RunRecord:
    if not earlier and not stopped:
        return record
    return save_record(run, replace(record, attempts=(*earlier, *record.attempts[-1:]), stopped=stopped))


def save_record(run: RunDir, record: RunRecord) -> RunRecord:
    """Write record.json, without secrets. The history finds it when it is next asked."""
    record = masked_record(record, safe_output.secret_values())
    write_record(run.record, record)
    return record


def new_record(
    plan: RunDescription,
    status: Status,
    verdict: Verdict,
    gpu_ids: Sequence[int] = (),
    calls: Sequence[DockerInvocation] = (),
    environment: Environment = Environment(),
    queued: float | None = None,
) -> RunRecord:
    """What is known of a run of this plan. `gpu_ids` are the GPUs that its log names, `queued` the seconds that it
    waited."""
    started, ended = status.started_at, status.ended_at
    observed = [item for call in calls for item in call.deviations]
    # What the adapter saw happen replaces what the plan foresaw under the same name.
    foreseen = [item for item in plan.deviations if item.what not in {other.what for other in observed}]
    gpu_ids = tuple(gpu_ids) or status.gpu_ids or ()
    uuids = tuple(gpu.uuid for gpu in environment.gpus if gpu.uuid and gpu.index in gpu_ids)
    around = RunEnvironment(**vars(environment), runtime=plan.runtime or None, image=plan.image)
    slurm = status.slurm or SlurmAllocation()
    attempt = Attempt(
        id=plan.id, host=plan.host or None, status=verdict.status, reason=verdict.reason, left=status.left,
        slurm_job_id=slurm.job, node=slurm.node, gpu_ids=gpu_ids, gpu_uuids=uuids or status.gpu_uuids,
        queue_seconds=queued if status.slurm is None else status.queue_seconds, image_digest=around.digest,
        driver=environment.driver, started_at=iso_time(started), ended_at=iso_time(ended),
    )  # fmt: skip
    seconds = round(ended - started, 3) if started and ended else None
    return RunRecord(
        id=plan.id, label=plan.label, row=plan.row, host=plan.host or None, status=verdict.status,
        reason=verdict.reason + (_CI_GOES_ON if plan.may_fail and verdict.status == FAILED else ""),
        may_fail=plan.may_fail, retry_of=plan.retry_of, exit_code=status.exit_code,
        started_at=attempt.started_at, ended_at=attempt.ended_at,
        timings=Timings(seconds, queued, status.longest_silence or None),
        checkout=plan.checkout if plan.checkout.path else None, gpus=plan.gpus, gpu_ids=gpu_ids,
        log=LogDigest(status.log_bytes, status.log_sha256), evidence=verdict.evidence,
        deviations=tuple(dict.fromkeys([*foreseen, *observed, *_of_status(status)])),
        environment=around, left=status.left, attempts=(attempt,),
    )  # fmt: skip


def _of_status(status: Status) -> Iterator[Deviation]:
    """What the agent noted of the run: variables of the shell by name, since a value may hold a password; what the job,
    or another program, changed that only the agent writes; an exit code that Slurm does not know."""
    if ACTIVATED in status.shell:
        why = "its packages are seen, too, unless the row has a Python of its own"
        yield Deviation("activated venv", "none", "first on PATH", why)
    if variables := " ".join(name for name in status.shell if name != ACTIVATED):
        why = "set in the shell on the host; values are not shown"
        yield Deviation("shell variables", "the runner's", variables, why)
    if status.changed:
        why = "a job here is the same user as its agent; only status.json and plan.json were written again"
        yield Deviation("files of the run", "out of the job's reach", f"changed: {', '.join(status.changed)}", why)
    slurm = status.slurm
    if slurm is not None and slurm.exit_code is None and status.end == "exit":
        why = f"neither squeue nor sacct knows job {slurm.job} any more"
        yield Deviation("exit code", "told by the runner", "not verified by Slurm", why)


def iso_time(seconds: float | None) -> str | None:
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds") if seconds else None
    return None  # no clock says so
