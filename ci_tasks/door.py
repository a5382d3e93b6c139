"""The one door out: expected failures become words on stderr and an exit code, anything else is a bug and says so."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

from ci_tasks.errors import EXIT_BLOCKED, EXIT_BUG, EXIT_CANCELLED, CiTasksError

EXIT_NO_READER = 141  # as of a program that SIGPIPE ended: nobody saw the result, so it is not 0
DEBUG_ENV = "CI_TASKS_DEBUG"
# A machine that has no room, or does not let us in, is no bug of ours.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_NO_ROOM_HINT = "CI_TASKS_HOME names the directory for runs (else ~/.local/state/ci-tasks)"


def run(flow: Callable[[], int]) -> int:
    """What `flow` returns, or the exit code of what stopped it."""
    _say_anything()
    try:
        return flow()
    except CiTasksError as error:
        print(f"ci-tasks: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ci-tasks: interrupted", file=sys.stderr)
        return EXIT_CANCELLED
    except BrokenPipeError:
        # The reader (`head`, a pager) has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    except Exception as error:
        if os.environ.get(DEBUG_ENV):
            raise
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            where = f": {str(error.filename)!r}" if error.filename is not None else ""
            print(f"ci-tasks: blocked: {error.strerror}{where}\n{_NO_ROOM_HINT}", file=sys.stderr)
            return EXIT_BLOCKED
        print(f"ci-tasks: a bug: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"{DEBUG_ENV}=1 shows the traceback; please report it", file=sys.stderr)
        return EXIT_BUG


def _say_anything() -> None:
    """A terminal that is not in UTF-8, or a path that is no text, is no reason to say nothing."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or not out.encoding.lower().startswith("utf")):
        out.reconfigure(errors="backslashreplace")
