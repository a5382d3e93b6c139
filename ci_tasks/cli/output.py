"""What commands print beside the text of reports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.codec import encode
from ci_tasks.errors import UsageError
from ci_tasks.safe_output import json_document

if TYPE_CHECKING:
    from ci_tasks.records import BatchResult
    from ci_tasks.run.events import EventStream


def print_json(value: Any) -> None:
    print(json_document(value))


def print_record(record: Any, *, as_json: bool) -> None:
    """Print `record` if it is to be JSON: people have read it already."""
    if as_json:
        print_json(encode(record))


@contextlib.contextmanager
def for_programs(*, as_json: bool, events: str | None) -> Iterator[EventStream | None]:
    """The stream of --events; what is for people is on standard error where a program reads standard output."""
    from ci_tasks.run.events import STDOUT, open_events

    if as_json and events == STDOUT:
        raise UsageError("--json and --events - cannot be combined: both would be on standard output")
    with people_read_stderr(as_json or events == STDOUT), open_events(events) as stream:
        yield stream


def run_batch(run: Callable[[EventStream | None], BatchResult], *, as_json: bool, events: str | None) -> int:
    """Call `run` with the stream of --events, and print its result if it is to be JSON. Returns the exit code."""
    with for_programs(as_json=as_json, events=events) as stream:
        result = run(stream)
        code = result.exit_code or 0
        if stream:
            stream.exit_code = code
    print_record(result, as_json=as_json)
    return code


def people_read_stderr(when: bool) -> AbstractContextManager[object]:
    """While the block lasts, what is printed for people goes to standard error: standard output is for a program."""
    return contextlib.redirect_stdout(sys.stderr) if when else contextlib.nullcontext()
