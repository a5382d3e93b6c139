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
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from ci_tasks import known_secrets

if TYPE_CHECKING:
    import logging
    from pathlib import Path

ENV = "CI_TASKS_DEBUG"
FLAG = "--debug"
MAX_FILES = 20  # older ones are removed when a new one is created
_LIBRARIES = ("paramiko", "urllib3", "huggingface_hub")
_DEBUG, _ERROR = 10, 40  # levels of `logging`, which is loaded with the first message: most commands have none
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(threadName)s %(name)s: %(message)s"
_is_started = _is_debug = False
_bugs: list[str] = []  # not reported yet
_lock = threading.RLock()


class _Logger:
    """`exc_info` is an exception, or True for the one that is handled now."""

    def debug(self, message: str, *args: object, exc_info: Any = None) -> None:
        if _is_debug:
            _write(_DEBUG, message, *args, exc_info=exc_info)

    def error(self, message: str, *args: object, exc_info: Any = None) -> None:
        if _is_started:
            _write(_ERROR, message, *args, exc_info=exc_info)


LOGGER = _Logger()


def take_flag(argv: Sequence[str]) -> list[str]:
    """`argv` without --debug, which sets the environment variable instead, so that child processes log too."""
    end = argv.index("--") if "--" in argv else len(argv)
    if FLAG in argv[:end]:
        os.environ[ENV] = "1"
    return [word for word in argv[:end] if word != FLAG] + list(argv[end:])


def start() -> bool:
    """Log uncaught exceptions of threads; those of the main one are caught where a command ends. Further calls do
    nothing. Returns whether a debug log was started."""
    global _is_started, _is_debug
    if _is_started:
        return False
    _is_started, _is_debug = True, bool(os.environ.get(ENV))
    threading.excepthook = _log_thread_exception
    words = (sys.version.split()[0], os.getpid(), os.getcwd(), " ".join(sys.argv))
    LOGGER.debug("Python %s, process %d in %s: %s", *words)
    return _is_debug


def bug(where: str, error: BaseException) -> str:
    """Log the traceback of an unexpected exception. Returns its class and message in one line, masked."""
    line = known_secrets.masked_with_forms(" ".join(f"{type(error).__name__}: {error}".split()))
    if _is_started:
        LOGGER.error("bug: %s", where, exc_info=error)
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
    return [_bugs.pop(0) for _ in range(len(_bugs))]


def location() -> str:
    """The path of the log. There is none where it could not be written."""
    return f"log: {_path()}" if _is_started and _path().exists() else "there is no log"


@cache
def _path() -> Path:
    from ci_tasks.resources import home

    return home() / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


@cache
def _log() -> logging.Logger:
    """The log, whose file is created on the first call. Raises OSError."""
    import logging

    from ci_tasks.resources import make_home

    class Handler(logging.FileHandler):
        def format(self, record: logging.LogRecord) -> str:
            return known_secrets.masked_with_forms(super().format(record))

        def handleError(self, record: logging.LogRecord) -> None:
            """Nothing: a full disk must not end a command that can go on."""

    make_home()
    _path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(_path(), os.O_WRONLY | os.O_CREAT, 0o600))
    handler = Handler(_path(), encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    for old in sorted(_path().parent.glob("*.log"))[:-MAX_FILES]:
        old.unlink(missing_ok=True)
    for name in ("ci_tasks", *(_LIBRARIES if _is_debug else ())):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.DEBUG)
    if _is_debug and handler.stream:
        import faulthandler
        import signal

        faulthandler.enable(handler.stream)  # files and functions, no values
        faulthandler.register(signal.SIGUSR1, handler.stream)
    return logging.getLogger("ci_tasks")


def _write(level: int, message: str, *args: object, exc_info: Any) -> None:
    with _lock, suppress(OSError):
        _log().log(level, message, *args, exc_info=exc_info)


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        bug(f"thread {args.thread.name if args.thread else '?'}", args.exc_value)
