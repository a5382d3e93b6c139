"""The end of a run whose agent could not write one: it was killed, or its host restarted."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from typing import Iterable

from .. import liveness, proc, run_directory
from ..records import Status

_MAY_BE_LEFT = "what it started was not looked for: `ci-tasks cancel` and `ci-tasks clean` end what they find"
_NOT_SEEN = "one that cleared its environment and left the job's process group is not seen without its agent"


def conclude(run: run_directory.RunDir) -> Status:
    """The status of a run of this host. Where its agent died without an end, status.json says so from now on. Raises
    OSError."""
    status, problem = _read(run)
    if liveness.is_alive(run, status) or (status.has_ended and not problem):
        return status
    status, problem = _read(run)  # it may have ended between the two
    if (status.has_ended or not status.exists) and not problem:
        return status
    lost = replace(
        status,
        state=run_directory.STATE_ENDED,
        phase="ended",
        waiting=(),
        ended_at=status.heartbeat_at,
        error=_reason(status) + problem,
        left=(_MAY_BE_LEFT,),
        gone=True,
    )
    return _write(run, lost)


def record_cleanup(run: run_directory.RunDir, ended: int, left: Iterable[str]) -> None:
    """Add to the status of a lost run what was ended of it, and what is left."""
    status = conclude(run)
    if status.gone:
        found = "%d of its processes %s ended" % (ended, "was" if ended == 1 else "were")
        _write(run, replace(status, error="; ".join([status.error or "", found, _NOT_SEEN]), left=tuple(left)))


def _read(run: run_directory.RunDir) -> "tuple[Status, str]":
    try:
        return run_directory.read_status(run), ""
    except ValueError as error:
        return Status(), "; its status could not be read: %s" % error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a disk may answer the next time, something that is no file will not
            raise
        return Status(), "; its status could not be read: %s" % error.strerror


def _reason(status: Status) -> str:
    seen = status.heartbeat_at
    last = time.strftime(" (last heartbeat %Y-%m-%d %H:%M:%S UTC)", time.gmtime(seen)) if seen else ""
    if status.boot_id not in (None, proc.boot_id()):
        return "the host restarted before the job ended" + last
    return "the agent died before the job ended" + last


def _write(run: run_directory.RunDir, status: Status) -> Status:
    status = replace(status, sequence=status.sequence + 1)
    try:
        if os.path.isdir(run.status):
            os.rename(run.status, run.status + ".changed")
        run_directory.write_record(run.status, status)
    except OSError:
        pass  # a full disk, a directory of somebody else
    return status
