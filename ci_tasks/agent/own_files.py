"""The files of a run directory that no job should change, although it could: the agent writes them, and notes which of
them something else changed.
"""

from __future__ import annotations

import os
from typing import List, Tuple

from . import run_directory
from .files import content_of, pinned, replace_file
from .records import AGENT_EVENTS, Event, Status, read_events

_MOST_EVENTS = 1 << 22  # bytes


class OwnFiles:
    """`changed` are the names of those that were changed."""

    def __init__(self, paths: run_directory.RunDir) -> None:
        self.changed: Tuple[str, ...] = ()
        self._paths = paths
        self._status = b""
        inputs = (paths.plan, paths.script, paths.agent, paths.adapter)
        self._inputs = {path: content_of(path, run_directory.LARGEST) for path in inputs}
        self._events = self._read_events()  # a requeued job has some already

    def note(self, path: str) -> None:
        name = os.path.relpath(path, self._paths.path)
        if name not in self.changed:
            self.changed += (name,)

    def write_status(self, status: Status) -> None:
        """Raises OSError."""
        content = run_directory.record_bytes(status)
        replace_file(self._paths.status, content)
        self._status = content

    def check_status(self) -> None:
        """Note whether status.json is still what was written last."""
        if self._status and content_of(self._paths.status, run_directory.LARGEST) != self._status:
            self.note(self._paths.status)

    def add_event(self, event: Event) -> None:
        """Raises OSError, also for a pipe in the place of the file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(pinned(self._paths.events), flags, 0o666), "wb") as out:
            out.write(event.line().encode())
        self._events.append(event)

    def check(self) -> None:
        """Note what was changed, when the job is over; of the events those of the agent."""
        for path, content in self._inputs.items():
            if content_of(path, run_directory.LARGEST) != content:
                self.note(path)
        if self._read_events() != self._events:
            self.note(self._paths.events)

    def _read_events(self) -> List[Event]:
        text = content_of(self._paths.events, _MOST_EVENTS).decode("utf-8", "replace")
        return [event for event in read_events(text) if event.event in AGENT_EVENTS]
