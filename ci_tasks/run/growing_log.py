"""A run's log on standard output, as it grows."""

from __future__ import annotations

import sys

from ci_tasks.agent.files import NotAFile, open_file
from ci_tasks.safe_output import LogFilter


class GrowingLog:
    """Copies a log to standard output as it grows: safe for a terminal, or with `raw` byte for byte."""

    def __init__(self, path: str, *, raw: bool = False) -> None:
        self.path = path
        self._offset = 0
        self._filter = None if raw else LogFilter()

    def copy(self) -> None:
        """Copy what has come since the last call."""
        try:
            with open_file(self.path) as source:
                source.seek(self._offset)
                while chunk := source.read(1 << 18):
                    self._write(self._filter.feed(chunk) if self._filter else chunk)
                    self._offset += len(chunk)
        except (FileNotFoundError, NotAFile):
            return
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Copy what was held back."""
        if self._filter:
            self._write(self._filter.flush())
            sys.stdout.buffer.flush()

    def _write(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
