"""The client's log: one file for each process in HOME/logs, with the traceback of every bug of every thread.

Without --debug (or CI_TASKS_DEBUG) the file is created only for a bug. With it the file exists from the start and also
has debug messages, those of paramiko and urllib3 included; SIGUSR1 adds the stack of each thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from ci_tasks import known_secrets

if TYPE_CHECKING:
    from pathlib import Path

ENV = "CI_TASKS_DEBUG"
FLAG = "--debug"
MAX_FILES = 20  # older ones are removed when a new one is created
_LIBRARIES = ("paramiko", "urllib3", "huggingface_hub")
_is_started = _is_debug = False
_bugs: list[str] = []  # not reported yet


class _LogFile:
    """Writes messages to a file that is created with the first one. An error (a full disk) is kept in `problem`."""

    def __init__(self) -> None:
        self.problem = ""
        self._path: Path | None = None
        self._out: IO[str] | None = None
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        from ci_tasks.resources import home  # most commands log nothing

        if self._path is None:
            self._path = home() / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        return self._path

    def write(self, level: str, name: str, message: str, error: Any = None) -> None:
        """`error` is an exception, True for the one that is handled now, or logging's triple."""
        import traceback

        error = sys.exc_info()[1] if error is True else error[1] if isinstance(error, tuple) else error
        trace = "".join(traceback.format_exception(error)) if error else ""
        now = f"{time.strftime('%Y-%m-%d %H:%M:%S')}.{int(time.time() * 1000) % 1000:03}"
        line = f"{now} {level:7} {threading.current_thread().name} {name}: {message}\n{trace}"
        with self._lock, self._noting_problems():
            self.open().write(known_secrets.masked_with_forms(line))
            self.open().flush()

    def dump_stacks(self, *, on_signal: bool = False) -> None:
        """Write the stack of each thread, now or at each SIGUSR1: names of files and functions, no values."""
        import faulthandler
        import signal

        with self._lock, self._noting_problems():
            out = self.open()
            if on_signal:
                faulthandler.enable(out)
                faulthandler.register(signal.SIGUSR1, out)
            else:
                faulthandler.dump_traceback(out)

    def open(self) -> IO[str]:
        """The file, which is created on the first call. Raises OSError."""
        from ci_tasks.resources import make_home

        if self._out is None:
            make_home()
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._out = os.fdopen(handle, "a", encoding="utf-8", errors="backslashreplace")
            for old in sorted(self.path.parent.glob("*.log"))[:-MAX_FILES]:
                old.unlink(missing_ok=True)
        return self._out

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = error.strerror or str(error)


class _Logger:
    def debug(self, message: str, *args: object, exc_info: Any = None) -> None:
        if _is_debug:
            _FILE.write("DEBUG", "ci_tasks", message % args, exc_info)

    def error(self, message: str, *args: object, exc_info: Any = None) -> None:
        if _is_started:
            _FILE.write("ERROR", "ci_tasks", message % args, exc_info)


_FILE = _LogFile()
LOGGER = _Logger()


def take_flag(argv: Sequence[str]) -> list[str]:
    """`argv` without --debug, which sets the environment variable instead, so that child processes log too."""
    end = argv.index("--") if "--" in argv else len(argv)
    if FLAG in argv[:end]:
        os.environ[ENV] = "1"
    return [word for word in argv[:end] if word != FLAG] + list(argv[end:])


def start() -> bool:
    """Log uncaught exceptions of all threads. Further calls do nothing. Returns whether a debug log was started."""
    global _is_started, _is_debug
    if _is_started:
        return False
    _is_started, _is_debug = True, bool(os.environ.get(ENV))
    threading.excepthook = _log_thread_exception
    previous_hook = sys.excepthook

    def log_uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
        LOGGER.error("uncaught exception", exc_info=error)
        previous_hook(kind, error, error.__traceback__)

    sys.excepthook = log_uncaught
    if _is_debug:
        words = (sys.version.split()[0], os.getpid(), os.getcwd(), " ".join(sys.argv))
        LOGGER.debug("Python %s, process %d in %s: %s", *words)
        _FILE.dump_stacks(on_signal=True)
        _log_libraries()
    return _is_debug


def bug(where: str, error: BaseException) -> str:
    """Log the traceback of an unexpected exception. Returns it in one line, for a person."""
    line = one_line(error)
    if _is_started:
        LOGGER.error("bug: %s", where, exc_info=error)
        _FILE.dump_stacks()
        _bugs.append(line)
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
    lines = _bugs.copy()
    del _bugs[: len(lines)]
    return lines


def location() -> str:
    """The path of the log, and why it could not be written."""
    if not _is_started:
        return "there is no log"
    return f"log: {_FILE.path}{f', which could not be written: {_FILE.problem}' if _FILE.problem else ''}"


def one_line(error: BaseException) -> str:
    """The exception's class and message, masked."""
    return known_secrets.masked_with_forms(" ".join(f"{type(error).__name__}: {error}".split()))


def _log_libraries() -> None:
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _FILE.write(record.levelname, record.name, record.getMessage(), record.exc_info)

    for name in _LIBRARIES:
        logging.getLogger(name).addHandler(Handler())
        logging.getLogger(name).setLevel(logging.DEBUG)


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        bug(f"thread {args.thread.name if args.thread else '?'}", args.exc_value)
