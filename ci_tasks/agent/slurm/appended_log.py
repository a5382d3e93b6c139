"""The log of a run that already has one: of a requeued job, or one whose agent could not say how it ended."""

from __future__ import annotations

from typing import Iterable

from ..log_file import RunLog

_CHUNK = 1 << 20


class AppendedLog(RunLog):
    """Count and digest include what the file already contains. Raises OSError."""

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
