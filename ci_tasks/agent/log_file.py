"""The log of a run: the job's output with secrets masked, its length and its digest; and agent.log, with the tracebacks
of the agent's own bugs.

A log that cannot be written (a full disk) does not stop the job, and is not taken for a short log: the error goes into
the status.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from contextlib import suppress
from typing import Iterable, Optional

from . import run_directory
from .files import pieces_of
from .mask import Masker, mask
from .run_directory import secret_values


class RunLog:
    def __init__(self, path: str, secrets: Iterable[str]) -> None:
        self.bytes = 0
        self.error: Optional[str] = None
        self._digest = hashlib.sha256()
        self._masker = Masker(secrets)
        self._path = path
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_file = stat.S_ISREG(os.fstat(self._out).st_mode)

    def write(self, chunk: bytes) -> None:
        self._write(self._masker.feed(chunk))

    def close(self) -> None:
        self._write(self._masker.flush())
        try:
            os.close(self._out)
        except OSError as error:  # a network file system may say only now that it could not write
            self._fail(error)

    @property
    def sha256(self) -> str:
        """The digest of the bytes that are in the file."""
        return self._digest.hexdigest()

    def is_intact(self) -> bool:
        """Whether the file has the bytes that were written, and no other. Unknown of a device or a full disk: true."""
        digest = hashlib.sha256()
        for piece in pieces_of(self._path) if self._is_file and self.error is None else ():
            digest.update(piece)
        return not self._is_file or self.error is not None or digest.digest() == self._digest.digest()

    def _write(self, data: bytes) -> None:
        while data and self.error is None:
            try:
                written = os.write(self._out, data)
            except OSError as error:
                self._fail(error)
                return
            self._digest.update(data[:written])
            self.bytes += written
            data = data[written:]

    def _fail(self, error: OSError) -> None:
        self.error = "the log could not be written: %s" % error.strerror


MAX_BYTES = 1 << 18  # a thread that fails once a second must not fill the disk


def log_traceback(run_dir: str, where: str, error: BaseException) -> None:
    """Append the traceback of `error`. Never raises: the run must still end."""
    import traceback  # most agents never need it

    paths = run_directory.RunDir(run_dir)
    with suppress(OSError, ValueError):
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        text = "%s %s\n%s" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), where, "".join(lines))
        out = os.open(paths.agent_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(out, "wb") as log:
            if os.fstat(out).st_size < MAX_BYTES:
                secrets = secret_values(run_directory.read_plan(paths))
                log.write(mask(secrets, text.encode("utf-8", "backslashreplace")))


def watch_threads(run_dir: str) -> None:
    """Log whatever ends a thread of this process."""

    def log_exception(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            log_traceback(run_dir, "thread %s" % (args.thread.name if args.thread else "?"), args.exc_value)

    threading.excepthook = log_exception
