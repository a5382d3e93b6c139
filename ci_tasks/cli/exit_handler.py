"""How commands end: an expected error becomes a message on stderr and an exit code, any other is logged as a bug."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable

from ci_tasks import debug_log, errors
from ci_tasks.run.interrupts import termination_interrupts
from ci_tasks.safe_output import safe_streams, terminal_of

# A full disk, a limit of a file's size (`ulimit -f`) or a missing permission is a problem of the machine, not a bug.
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
_LONGEST = 4000  # characters of a message; `--debug` logs all of it
_STORAGE_HINT = "CI_TASKS_HOME sets the directory for runs (default: ~/.local/state/ci-tasks)"


def run(command: Callable[[], int]) -> int:
    """Call `command`; what it prints cannot control the terminal. Returns its exit code, or the exit code of the
    exception that ended it."""
    with safe_streams(), termination_interrupts():
        code = _exit_code(command)
        bugs = debug_log.drain_bugs()  # of all threads
        for line in bugs:
            _print_error(f"this is a bug in ci-tasks, please report it: {line} ({debug_log.location()})")
    if bugs and code == errors.EXIT_BLOCKED:  # which would claim that the environment was the reason
        code = errors.EXIT_BUG
    debug_log.debug("exit code %d", code)
    return code


def _exit_code(command: Callable[[], int]) -> int:
    try:
        if debug_log.start():
            _print_error(debug_log.location())
        out = terminal_of(sys.stdout)
        if isinstance(out, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # a pipe in the place of the file that the stream was opened on
                out.reconfigure(errors="backslashreplace")  # what its encoding lacks, and paths that are no text
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()  # at its end, Python would report an error in its own way
        return code
    except errors.CiTasksError as error:
        message, code = str(error), error.exit_code
        debug_log.debug("expected error", exc_info=error)
    except KeyboardInterrupt:
        message, code = "interrupted", errors.EXIT_CANCELLED
        debug_log.debug(message, exc_info=True)
    except OSError as error:
        message, code = _system_error(error)
    except Exception as error:
        debug_log.bug("in the main thread", error)
        return errors.EXIT_BUG
    _print_error(message)
    return code


def _system_error(error: OSError) -> tuple[str, int]:
    """What to say of it, and its exit code."""
    from ci_tasks.resources import home  # no command needs it to start

    debug_log.debug("system error", exc_info=error)
    # `head`, a pager's end, or a terminal that was closed.
    if error.errno in (errno.EPIPE, errno.EIO) and (_is_closed_pipe(1) or _is_closed_pipe(2)):
        _discard_output()
        return "", errors.EXIT_CLOSED_PIPE
    if error.errno == errno.ENAMETOOLONG:  # a word that a person has typed
        return f"{error.strerror}: {errors.shortened(str(error.filename), 60)!r}", errors.EXIT_USAGE
    parent = os.path.dirname(str(error.filename or ""))
    is_no_home = error.errno == errno.ENOENT and parent == str(home())  # as in /proc
    if error.errno not in _STORAGE_ERRORS and not is_no_home:
        debug_log.bug("in the main thread", error)
        return "", errors.EXIT_BUG
    if error.filename is None:  # perhaps of the output, which Python would flush again at its end
        _discard_output()
    where = f": {str(error.filename)!r}" if error.filename is not None else ", for the output or for a run"
    return f"blocked: {error.strerror}{where}\n{_STORAGE_HINT}", errors.EXIT_BLOCKED


def _is_closed_pipe(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_output() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    if _is_closed_pipe(2):
        os.dup2(nothing, 2)


def _print_error(message: str) -> None:
    if not message:
        return
    with contextlib.suppress(OSError):  # stderr is closed too
        print(f"ci-tasks: {errors.printable(errors.shortened(message, _LONGEST))}", file=sys.stderr, flush=True)
