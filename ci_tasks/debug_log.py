"""The client's log: one file for each process in HOME/logs, with the traceback of every bug of every thread.

Without --debug (or CI_TASKS_DEBUG) the file is created only for a bug. With it the file exists from the start and also
has debug messages, those of paramiko and urllib3 included; SIGUSR1 adds the stack of each thread.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO

from ci_tasks import known_secrets
from ci_tasks.resources import home, make_home

ENV = "CI_TASKS_DEBUG"
FLAG = "--debug"
MAX_FILES = 20  # older ones are removed when a new one is created
LOGGER = logging.getLogger("ci_tasks")
LOGGER.addHandler(logging.NullHandler())
_LIBRARIES = ("paramiko", "urllib3", "huggingface_hub")
_FORMAT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"

# Secrets that are recognized by their form: a login or a query in an address, tokens of GitHub and Hugging Face.
_SECRET_FORMS = re.compile(
    r"(?<=://)[^/\s@]+(?=@)|(?<=\?)[^\s\"'?]*=[^\s\"']*|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bhf_[A-Za-z0-9]{16,}"
    r"|(?<=[Bb]earer )\S+"
)
_file: _LogFile | None = None


class _LogFile(logging.Handler):
    """Writes records to a file that is created with the first one. An error (a full disk) is kept in `problem`."""

    def __init__(self) -> None:
        super().__init__()
        self._name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        self.problem = ""  # why the log could not be written
        self.bugs: list[str] = []  # not reported yet
        self._out: IO[str] | None = None
        self.setFormatter(logging.Formatter(_FORMAT))

    @cached_property
    def path(self) -> Path:
        return home() / "logs" / self._name

    def emit(self, record: logging.LogRecord) -> None:
        try:
            out = self.open()
            out.write(masked(self.format(record)) + "\n")
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


def take_flag(argv: Sequence[str]) -> list[str]:
    """`argv` without --debug, which sets the environment variable instead, so that child processes log too."""
    end = argv.index("--") if "--" in argv else len(argv)
    if FLAG in argv[:end]:
        os.environ[ENV] = "1"
    return [word for word in argv[:end] if word != FLAG] + list(argv[end:])


def start() -> bool:
    """Log uncaught exceptions of all threads. Further calls do nothing. Returns whether a debug log was started."""
    global _file
    if _file is not None:
        return False
    _file = _LogFile()
    is_debug = bool(os.environ.get(ENV))
    LOGGER.propagate = False  # the handlers of nox and pytest would print the records
    for name in ("ci_tasks", *(_LIBRARIES if is_debug else ())):
        logger = logging.getLogger(name)
        logger.addHandler(_file)
        logger.setLevel(logging.DEBUG if is_debug else logging.ERROR)
    threading.excepthook = _log_thread_exception
    previous_hook = sys.excepthook

    def log_uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
        LOGGER.error("uncaught exception", exc_info=error)
        previous_hook(kind, error, error.__traceback__)

    sys.excepthook = log_uncaught
    if is_debug:
        command_line = " ".join(sys.argv)
        LOGGER.debug("Python %s, process %d in %s: %s", sys.version.split()[0], os.getpid(), os.getcwd(), command_line)
        _dump_on_signal(_file)
    return is_debug


def bug(where: str, error: BaseException) -> str:
    """Log the traceback of an unexpected exception. Returns it in one line, for a person."""
    LOGGER.error("bug: %s", where, exc_info=error)
    line = one_line(error)
    if _file is not None:
        _file.dump_stacks()
        _file.bugs.append(line)
    return line


@contextmanager
def ignored(where: str) -> Iterator[None]:
    """Suppress and log any exception of the block, such as paramiko's when a dead connection is closed."""
    try:
        yield
    except Exception:
        LOGGER.debug("ignored: %s", where, exc_info=True)


def drain_bugs() -> list[str]:
    """One line for each bug since the last call."""
    if _file is None:
        return []
    lines, _file.bugs = _file.bugs, []
    return lines


def location() -> str:
    """The path of the log, and why it could not be written."""
    if _file is None:
        return "there is no log"
    return f"log: {_file.path}{f', which could not be written: {_file.problem}' if _file.problem else ''}"


def one_line(error: BaseException) -> str:
    """The exception's class and message, masked."""
    return masked(" ".join(f"{type(error).__name__}: {error}".split()))


def masked(text: str) -> str:
    """`text` without known secrets, and without what has the form of one."""
    return _SECRET_FORMS.sub(known_secrets.MASK, known_secrets.masked(text))


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        bug(f"thread {args.thread.name if args.thread else '?'}", args.exc_value)


def _dump_on_signal(file: _LogFile) -> None:
    try:
        out = file.open()
    except OSError as error:
        file.problem = error.strerror or str(error)
        return
    faulthandler.enable(out)
    faulthandler.register(signal.SIGUSR1, out)


def _remove_old(directory: Path) -> None:
    for path in sorted(directory.glob("*.log"))[:-MAX_FILES]:
        path.unlink(missing_ok=True)
