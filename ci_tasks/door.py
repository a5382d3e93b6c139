"""The one door out: expected failures become words on stderr and an exit code, anything else is a bug and says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ci_tasks.errors import EXIT_BUG, EXIT_CANCELLED, CiTasksError

DEBUG_ENV = "CI_TASKS_DEBUG"


def run(flow: Callable[[], int]) -> int:
    """What `flow` returns, or the exit code of what stopped it."""
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
        return 0
    except Exception as error:
        if os.environ.get(DEBUG_ENV):
            raise
        print(f"ci-tasks: a bug: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"{DEBUG_ENV}=1 shows the traceback; please report it", file=sys.stderr)
        return EXIT_BUG
