"""The record of a run: record.json, or where there is none what its other files say.

Commands that only look read runs that have ended. What judges a run is loaded where one has no record yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.run_directory import RunDir, read_record
from ci_tasks.errors import UsageError
from ci_tasks.records import RunRecord
from ci_tasks.results.batch_state import read_state_if_readable


class UnreadableRun(UsageError):
    """A file of a run directory is not what it should be; the message names the file and the key."""


def read_run_record(run: RunDir) -> RunRecord | None:
    """The content of record.json; None where there is none. Raises UnreadableRun, OSError."""
    with _readable():
        return read_record(RunRecord, run.record)


def load_record(run: RunDir) -> RunRecord:
    """The record of a run, or what can be said of one without: it runs, it has yet to begin, or its client went away
    before. Raises UnreadableRun, OSError."""
    with _readable():
        batch = read_state_if_readable(os.path.dirname(run.path))
        if record := read_record(RunRecord, run.record):
            return record
        from ci_tasks.results.judge_run import record_without_file

        return record_without_file(run, batch)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except RecordError as error:
        raise UnreadableRun(str(error), hint="a record.json that is removed is made again from its run") from None
