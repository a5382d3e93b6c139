"""agent.log in the run directory: tracebacks of the agent's own bugs. The status has the error in one line."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from . import run_directory
from .job_environment import secret_values
from .mask import mask

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
