"""The file of the client's log, as a handler of `logging`. Only a command that logs something loads this module."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import IO

from ci_tasks.known_secrets import masked_with_forms
from ci_tasks.resources import home, make_home

MAX_FILES = 20  # older ones are removed when a new one is created
LOGGER = logging.getLogger("ci_tasks")
LOGGER.addHandler(logging.NullHandler())
_LIBRARIES = ("paramiko", "urllib3", "huggingface_hub")
_FORMAT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"


class LogFile(logging.Handler):
    """Writes records to a file that is created with the first one. An error (a full disk) is kept in `problem`."""

    def __init__(self) -> None:
        super().__init__()
        self._name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        self.problem = ""  # why the log could not be written
        self._out: IO[str] | None = None
        self.setFormatter(logging.Formatter(_FORMAT))

    @cached_property
    def path(self) -> Path:
        return home() / "logs" / self._name

    def emit(self, record: logging.LogRecord) -> None:
        try:
            out = self.open()
            out.write(masked_with_forms(self.format(record)) + "\n")
            out.flush()
        except OSError as error:
            self.problem = error.strerror or str(error)

    def open(self) -> IO[str]:
        """The file, which is created on the first call. Raises OSError."""
        if self._out is None:
            make_home()
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._out = os.fdopen(handle, "a", encoding="utf-8", errors="backslashreplace")
            _remove_old(self.path.parent)
        return self._out

    def dump_stacks(self) -> None:
        """Write the stack of each thread: names of files and functions, no values."""
        try:
            with self.lock or threading.RLock():
                out = self.open()
                faulthandler.dump_traceback(out)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def dump_on_signal(self) -> None:
        """SIGUSR1 adds the stack of each thread."""
        try:
            out = self.open()
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        faulthandler.enable(out)
        faulthandler.register(signal.SIGUSR1, out)


def start(*, debug: bool) -> LogFile:
    """Log errors, or all messages and those of the libraries, to a new file."""
    file = LogFile()
    LOGGER.propagate = False  # the handlers of nox and pytest would print the records
    for logger in (LOGGER, *(logging.getLogger(name) for name in (_LIBRARIES if debug else ()))):
        logger.addHandler(file)
        logger.setLevel(logging.DEBUG if debug else logging.ERROR)
    return file


def _remove_old(directory: Path) -> None:
    for path in sorted(directory.glob("*.log"))[:-MAX_FILES]:
        path.unlink(missing_ok=True)
