"""Asking a run's agent to look at the run's processes, on the host."""

from __future__ import annotations

import time
from typing import Callable, Optional

from .. import run_directory
from ..codec import RecordError
from ..files import replace_file
from .facts import HangFacts
from .watcher import MAX_REQUEST, MAX_SECONDS

_WAIT_SECONDS = MAX_SECONDS + 10.0  # the agent sees the request with its next heartbeat


class NoLook(Exception):
    """Why nothing was seen, for a person."""


def wait_for_look(run_dir: str, request: str, is_given_up: Callable[[], bool] = lambda: False) -> HangFacts:
    """What the run's agent has seen after it was asked. Raises NoLook."""
    paths = run_directory.RunDir(run_dir)
    if not (request.isalnum() and len(request) <= MAX_REQUEST):
        raise NoLook("no request: %.100r" % request)
    until, is_asked = time.monotonic() + _WAIT_SECONDS, False
    while time.monotonic() < until and not is_given_up():
        facts = facts_of(paths)
        if facts is not None and facts.request == request:
            return facts
        status = run_directory.read_status_if_readable(paths)
        if not status.exists or status.has_ended:
            raise NoLook("the run %s" % ("has ended" if status.has_ended else "has not begun"))
        if not is_asked:
            try:
                replace_file(paths.hang_request, request.encode("ascii"))
            except (OSError, ValueError) as error:
                raise NoLook("the request could not be written: %s" % error) from None
        is_asked = True
        time.sleep(0.2)
    raise NoLook("its agent has not answered within %.0f s" % _WAIT_SECONDS)


def facts_of(paths: run_directory.RunDir) -> Optional[HangFacts]:
    """What was seen last of a run."""
    try:
        return run_directory.read_record(HangFacts, paths.hang)
    except (OSError, RecordError):
        return None
