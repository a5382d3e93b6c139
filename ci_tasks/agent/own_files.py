"""The files of a run directory that no job should change, although it could: the agent remembers what belongs into
them, restores that, and notes which of them were changed.
"""

from __future__ import annotations

import os
import time
from typing import Dict, List, Tuple

from . import run_directory
from .files import content_of, replace_file
from .records import AGENT_EVENTS, Event, Status, read_events

_MOST_EVENTS = 1 << 22  # bytes


class OwnFiles:
    """`changed` are the names of those that were changed."""

    def __init__(self, paths: run_directory.RunDir) -> None:
        self.changed: Tuple[str, ...] = ()
        self._paths = paths
        self._status = b""
        self._inputs: Dict[str, bytes] = {}
        for path in (paths.plan, paths.script, paths.agent, paths.adapter):
            content = content_of(path, run_directory.LARGEST)
            if content:
                self._inputs[path] = content

        # A requeued job has some already.
        self._events = [event for event in self._read_events() if event.event in AGENT_EVENTS]

    def note(self, path: str) -> None:
        name = os.path.relpath(path, self._paths.path)
        if name not in self.changed:
            self.changed += (name,)

    def write_status(self, status: Status) -> None:
        """Raises OSError."""
        content = run_directory.record_bytes(status)
        _put(self._paths.status, content)
        self._status = content

    def check_status(self) -> None:
        """Note whether status.json is still what was written last."""
        if self._status and content_of(self._paths.status, run_directory.LARGEST) != self._status:
            self.note(self._paths.status)

    def add_event(self, event: Event) -> None:
        """Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            out = os.open(self._paths.events, flags, 0o666)
        except OSError:  # a pipe or a directory in its place; a disk that is full says so again
            _put(self._paths.events, b"")
            out = os.open(self._paths.events, flags, 0o666)
        try:
            os.write(out, event.line().encode())
        finally:
            os.close(out)
        self._events.append(event)

    def restore(self) -> None:
        """Put back what was changed, when the job is over; of the events those of the agent."""
        for path, content in self._inputs.items():
            if content_of(path, run_directory.LARGEST) != content:
                self._restore(path, content)
        events = self._read_events()
        if [event for event in events if event.event in AGENT_EVENTS] != self._events:
            others = [event for event in events if event.event not in AGENT_EVENTS]
            events = sorted([*self._events, *others], key=lambda event: event.t)
            self._restore(self._paths.events, "".join(event.line() for event in events).encode())

    def _restore(self, path: str, content: bytes) -> None:
        self.note(path)
        try:
            _put(path, content)
            os.chmod(path, 0o755 if path in (self._paths.script, self._paths.adapter) else 0o644)
        except OSError:
            pass  # a full disk

    def _read_events(self) -> List[Event]:
        return read_events(content_of(self._paths.events, _MOST_EVENTS).decode("utf-8", "replace"))


def _put(path: str, content: bytes) -> None:
    """Replace `path`, also where the job has put a directory there or locked the run directory. Raises OSError."""
    try:
        replace_file(path, content)
    except PermissionError:
        os.chmod(os.path.dirname(path), 0o755)
        replace_file(path, content)
    except IsADirectoryError:
        os.rename(path, "%s.%d" % (path, time.time_ns()))
        replace_file(path, content)
