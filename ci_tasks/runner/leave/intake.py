"""Takes files that nobody vouches for into `artifacts`: whole or not at all, within limits, never through a link.

Everything is first put below a fresh directory of our own, into which only new files and directories go; a link that
a job left where we write could otherwise lead anywhere that its owner may write. Secrets are masked as in the log.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterable, List, Optional

from .. import layout
from ..mask import Masker

LIMIT = 200 << 20  # bytes of one run
FILES = 20000
RESERVE = 32 << 20  # bytes that stay free: the end of a run must still fit on the disk
LISTED = 1000  # left-out files that are named; of the others there is the number
CHUNK = 1 << 20


class Intake:
    """Fills a directory beside `artifacts`; `close` moves what came in to its place."""

    def __init__(self, paths: layout.RunDir, secrets: Iterable[str]) -> None:
        self.paths, self.secrets = paths, list(secrets)
        self.left_out: List[Dict[str, Any]] = []
        self.more = 0
        self.room, self.files = LIMIT, FILES
        self._top: Optional[str] = None

    def add(self, where: str, path: str, size: int, read: Callable[[int], bytes]) -> None:
        """The file `path` of `where`, which `read` gives. Raises what `read` raises, but for OSError."""
        why = self._refusal(path, size)
        if why is None:
            try:
                self._write(os.path.join(self._directory(), where, *_parts(path)), read)
            except OSError as error:
                why = error.strerror or str(error)
        if why is None:
            self.room -= size
            self.files -= 1
        else:
            self.leave(where, path, size, why)

    def leave(self, where: str, path: str, size: Optional[int], why: str) -> None:
        """Note that the file was not taken."""
        if len(self.left_out) < LISTED:
            self.left_out.append({"from": where, "path": path, "bytes": size, "why": why})
        else:
            self.more += 1

    def close(self) -> None:
        """Into `artifacts`, beside what the job itself may have put there. Raises OSError."""
        try:
            for name in sorted(os.listdir(self._top)) if self._top else []:
                os.rename(os.path.join(str(self._top), name), _free(self.paths.artifacts, name))
            if self.left_out:
                more = [{"more": self.more}] if self.more else []
                layout.write_json(os.path.join(self.paths.artifacts, "left-out.json"), self.left_out + more)
        finally:
            if self._top:
                shutil.rmtree(self._top, ignore_errors=True)

    def _refusal(self, path: str, size: int) -> Optional[str]:
        if ".." in path.split("/") or "\0" in path:
            return "its name leads elsewhere"
        if size > self.room:
            return "over the limit of %d MB" % (LIMIT >> 20)
        if self.files <= 0:
            return "over the limit of %d files" % FILES
        if size > shutil.disk_usage(self.paths.path).free - RESERVE:
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
                masker = Masker(self.secrets)
                chunk = read(CHUNK)
                while chunk:
                    out.write(masker.feed(chunk))
                    chunk = read(CHUNK)
                out.write(masker.flush())
        except BaseException:
            os.unlink(path)
            raise


def _parts(path: str) -> List[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _free(directory: str, name: str) -> str:
    """A path in `directory` where nothing is yet."""
    path, number = os.path.join(directory, name), 1
    while os.path.lexists(path):
        number += 1
        path = os.path.join(directory, "%s.%d" % (name, number))
    return path
