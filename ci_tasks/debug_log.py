"""The client's log: one file for each process in HOME/logs, with the traceback of every bug of every thread.

Without --debug (or CI_TASKS_DEBUG) the file is created only for a bug. With it the file exists from the start and also
has debug messages, including paramiko's and urllib3's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from ci_tasks import safe_output

if TYPE_CHECKING:
    from pathlib import Path

ENV = "CI_TASKS_DEBUG"
FLAG = "--debug"
MAX_FILES = 20  # older ones are removed when a new one is created
_is_started = _is_debug = False
_bugs: list[str] = []  # not reported yet
_lock = threading.RLock()


def debug(message: str, *args: object, exc_info: Any = None) -> None:
    """As `logging.debug`, which only --debug loads. `exc_info` is an exception, or True for the one that is handled."""
    if _is_debug:
        _write("DEBUG", message % args, exc_info)


def take_flag(argv: Sequence[str]) -> list[str]:
    """`argv` without --debug, which sets the environment variable instead, so that child processes log too."""
    end = argv.index("--") if "--" in argv else len(argv)
    if FLAG in argv[:end]:
        os.environ[ENV] = "1"
    return [word for word in argv[:end] if word != FLAG] + list(argv[end:])


def start() -> bool:
    """Log uncaught exceptions of threads; the main thread's are caught where a command ends. Further calls do nothing.
    Returns whether a debug log was started."""
    global _is_started, _is_debug
    if _is_started:
        return False
    _is_started, _is_debug = True, bool(os.environ.get(ENV))
    threading.excepthook = _log_thread_exception
    debug("Python %s, process %d in %s: %s", sys.version.split()[0], os.getpid(), os.getcwd(), " ".join(sys.argv))
    if _is_debug:
        import logging

        class Libraries(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                _write(record.levelname, f"{record.name}: {record.getMessage()}", None)

        logging.basicConfig(level=logging.DEBUG, handlers=[Libraries()])
    return _is_debug


def bug(where: str, problem: BaseException) -> str:
    """Log the traceback of an unexpected exception. Returns its class and message in one line, masked."""
    line = safe_output.masked_with_forms(" ".join(f"{type(problem).__name__}: {problem}".split()))
    if _is_started:
        _write("ERROR", f"bug: {where}", problem)
        _bugs.append(line)
    return line


def drain_bugs() -> list[str]:
    """One line for each bug since the last call."""
    return [_bugs.pop(0) for _ in range(len(_bugs))]


def location() -> str:
    """The path of the log. There is none if it could not be written."""
    with suppress(OSError):
        if _is_started and _path().exists():
            return f"log: {_path()}"
    return "there is no log"


@cache
def _path() -> Path:
    """The file, in a directory that is made now. Raises OSError."""
    from ci_tasks.resources import make_home

    directory = make_home() / "logs"
    directory.mkdir(mode=0o700, exist_ok=True)
    for old in sorted(directory.glob("*.log"))[: 1 - MAX_FILES]:
        old.unlink(missing_ok=True)
    return directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def _write(level: str, message: str, problem: Any) -> None:
    if problem:
        import traceback

        lines = traceback.format_exception(sys.exc_info()[1] if problem is True else problem)
        message += "\n" + "".join(lines).rstrip()
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {level:7} {threading.current_thread().name} {message}\n"
    data = safe_output.masked_with_forms(line).encode("utf-8", "backslashreplace")
    # A full disk must not end a command that can go on.
    with _lock, suppress(OSError), open(_path(), "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
        log.write(data)


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        bug(f"thread {args.thread.name if args.thread else '?'}", args.exc_value)
