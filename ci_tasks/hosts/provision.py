"""The install steps that rows share: a run of their own, whose log says how far they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from ci_tasks.agent.directories import remove_tree
from ci_tasks.agent.files import open_file
from ci_tasks.agent.run_directory import RunDir

SETUP_PARTS = ("venv", "workspace", "tmp")  # what rows use of the directory of install steps; log and plan stay
_OURS = b"ci-tasks: "  # what our own program prints among the steps' output
_LONGEST_LINE = 300
_BLOCKED = 125  # the exit code of what run.sh itself gives up
_REMINDER_S = 20.0  # after which they say how far they are


class InstallLog:
    """The log of install steps as it grows: passes on what our own program says, and says now and then that they go
    on."""

    def __init__(self, run: RunDir, say: Callable[[str], None]) -> None:
        self._run, self._say, self._begun, self._offset = run, say, time.monotonic(), 0
        self._spoken = self._begun
        say(f"install steps: running, log {run.log}")

    def poll(self) -> None:
        with suppress(OSError), open_file(self._run.log) as log:
            log.seek(self._offset)
            for line in log:
                self._offset += len(line) if line.endswith(b"\n") else 0
                if line.startswith(_OURS) and line.endswith(b"\n"):
                    self._say(line[len(_OURS) :][:_LONGEST_LINE].decode("utf-8", "replace").strip())
        if time.monotonic() - self._spoken > _REMINDER_S:
            self._spoken = time.monotonic()
            what = f"install steps: {self._spoken - self._begun:.0f} s"
            self._say(": ".join(filter(None, (what, last_line(self._run)))))

    def finish(self, code: int | None) -> str | None:
        """Why they failed with this exit code."""
        self.poll()
        if code == 0:
            self._say(f"install steps: done in {time.monotonic() - self._begun:.0f} s")
            return None
        from ci_tasks.logs.causes import JobEnd
        from ci_tasks.logs.reading import read_run_log
        from ci_tasks.results.judge_run import log_triage

        log = self._run.log
        if code == _BLOCKED and (blocked := read_run_log(log).facts.blocked):
            return f"{blocked} (log {log})"
        triage = log_triage(self._run, JobEnd("exit", code or 1))
        lines = [triage.text, triage.line, *(each.line for each in triage.candidates)]
        return f"the install steps ended with {code}: {next(filter(None, lines), 'no output')} (log {log})"


def remove_setup(directory: str) -> list[str]:
    """Remove the venv and the checkout of install steps here. Returns a line for each thing that is left."""
    return [line for name in SETUP_PARTS for line in remove_tree(f"{directory}/{name}", None, "none", {})]


_ENDS = b"##[endgroup]", b"::endgroup::"  # of groups in GitHub's log
_TAIL = 1 << 14  # bytes: a line of metrics alone may have several thousand


def last_line(run: RunDir) -> str:
    """The last line of a log that says something, safe for a terminal; a line of metrics in short."""
    from ci_tasks.registry import metric_formats
    from ci_tasks.results.progress import line_summary

    try:
        with open_file(run.log) as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    formats = metric_formats()
    texts = (line_summary(line, formats) for line in reversed(lines) if not line.startswith(_ENDS))
    return next((text for text in texts if any(char.isalnum() for char in text)), "")
