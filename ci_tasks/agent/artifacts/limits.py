"""Writes untrusted files into `artifacts`: whole or not at all, within limits, never through a link.

Everything first goes below a fresh directory of our own, where only new files and directories are made: a link that a
job left where we write could lead anywhere. Secrets are masked at the very end: see `exit_gate`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Callable, List, Optional

from .. import run_directory
from ..files import unused_path
from ..records import LeftOut, LeftOutFile

LIMIT = 200 << 20  # bytes of one run
MAX_FILES = 20000
RESERVED_BYTES = 32 << 20  # bytes that stay free: the end of a run must still fit on the disk
MAX_NAMED = 1000  # left-out files that are named; the others are counted
CHUNK = 1 << 20


class ArtifactWriter:
    """Fills a directory beside `artifacts`; `close` moves its content there."""

    def __init__(self, paths: run_directory.RunDir) -> None:
        self.paths = paths
        self.left_out: List[LeftOutFile] = []
        self.unnamed = 0
        self.bytes_left, self.files_left = LIMIT, MAX_FILES
        self._top: Optional[str] = None

    def add(self, place: str, path: str, size: int, read: Callable[[int], bytes]) -> None:
        """Add the file `path` of `place` (the host, a container), whose content `read(size)` returns. An OSError
        leaves the file out; any other exception of `read` is raised."""
        reason = self._limit_reason(path, size)
        if reason is None:
            try:
                self._write(os.path.join(self._directory(), place, *_parts(path)), read)
            except OSError as error:
                reason = error.strerror or str(error)
        if reason is None:
            self.bytes_left -= size
            self.files_left -= 1
        else:
            self.leave_out(place, path, size, reason)

    def leave_out(self, place: str, path: str, size: Optional[int], reason: str) -> None:
        """Note that the file is not in `artifacts`, for left-out.json."""
        if len(self.left_out) < MAX_NAMED:
            self.left_out.append(LeftOutFile(place, path, size, reason))
        else:
            self.unnamed += 1

    def close(self) -> None:
        """Move everything into `artifacts`, beside what the job itself may have put there. Raises OSError."""
        try:
            for name in sorted(os.listdir(self._top)) if self._top else []:
                os.rename(os.path.join(str(self._top), name), unused_path(os.path.join(self.paths.artifacts, name)))
            if self.left_out:
                left_out = LeftOut(tuple(self.left_out), self.unnamed)
                run_directory.write_record(os.path.join(self.paths.artifacts, "left-out.json"), left_out)
        finally:
            if self._top:
                shutil.rmtree(self._top, ignore_errors=True)

    def _limit_reason(self, path: str, size: int) -> Optional[str]:
        if ".." in path.split("/") or "\0" in path:
            return "its path leads elsewhere"
        if size > self.bytes_left:
            return "over the limit of %d MB" % (LIMIT >> 20)
        if self.files_left <= 0:
            return "over the limit of %d files" % MAX_FILES
        if size > shutil.disk_usage(self.paths.path).free - RESERVED_BYTES:
            return "the disk is full"
        return None

    def _directory(self) -> str:
        if self._top is None:
            self._top = tempfile.mkdtemp(prefix=".collected-", dir=self.paths.path)
        return self._top

    def _write(self, path: str, read: Callable[[int], bytes]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(handle, "wb") as out:
                for chunk in iter(lambda: read(CHUNK), b""):
                    out.write(chunk)
        except BaseException:
            os.unlink(path)
            raise


def _parts(path: str) -> List[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
