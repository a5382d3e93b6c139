"""The client's log: one file for each process in HOME/logs, with the traceback of every bug of every thread.

Without --debug (or CI_TASKS_DEBUG) the file is created only for a bug, and `logging` is loaded only then. With it the
file exists from the start and also has debug messages, those of paramiko and urllib3 included; SIGUSR1 adds the stack
of each thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ci_tasks import known_secrets

if TYPE_CHECKING:
    from logging import Logger

    from ci_tasks.debug_log_file import LogFile

ENV = "CI_TASKS_DEBUG"
FLAG = "--debug"
_lock = threading.Lock()
_is_started = _is_debug = False
_log_file: LogFile | None = None
_problem = ""  # why there is no log of a bug
_bugs: list[str] = []  # not reported yet


class _DeferredLogger:
    """The logger of ci-tasks, which is loaded with the first message that is kept."""

    def debug(self, message: str, *args: object, exc_info: Any = None) -> None:
        if _is_debug:
            _logger().debug(message, *args, exc_info=exc_info)

    def error(self, message: str, *args: object, exc_info: Any = None) -> None:
        _logger().error(message, *args, exc_info=exc_info)


LOGGER = _DeferredLogger()


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
        command_line = " ".join(sys.argv)
        LOGGER.debug("Python %s, process %d in %s: %s", sys.version.split()[0], os.getpid(), os.getcwd(), command_line)
        _file().dump_on_signal()
    return _is_debug


def bug(where: str, error: BaseException) -> str:
    """Log the traceback of an unexpected exception. Returns it in one line, for a person."""
    global _problem
    line = one_line(error)
    try:
        LOGGER.error("bug: %s", where, exc_info=error)
        if _is_started:
            _file().dump_stacks()
    except OSError as problem:  # such as no file descriptor to load `logging` with
        _problem = problem.strerror or str(problem)
    if _is_started:
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
    if _problem or not _is_started:
        return f"there is no log{f': {_problem}' if _problem else ''}"
    file = _file()
    return f"log: {file.path}{f', which could not be written: {file.problem}' if file.problem else ''}"


def one_line(error: BaseException) -> str:
    """The exception's class and message, masked."""
    return known_secrets.masked_with_forms(" ".join(f"{type(error).__name__}: {error}".split()))


def _logger() -> Logger:
    from ci_tasks.debug_log_file import LOGGER

    if _is_started:
        _file()
    return LOGGER


def _file() -> LogFile:
    global _log_file
    from ci_tasks import debug_log_file

    with _lock:
        if _log_file is None:
            _log_file = debug_log_file.start(debug=_is_debug)
        return _log_file


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        bug(f"thread {args.thread.name if args.thread else '?'}", args.exc_value)
