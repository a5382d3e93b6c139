"""The last line of a log that grows."""

from __future__ import annotations

import os

from ci_tasks.agent.files import open_file
from ci_tasks.agent.run_directory import RunDir

_TAIL = 1 << 14  # bytes: a line of metrics alone may have several thousand


def last_line(run: RunDir) -> str:
    """The last line of a log, safe for a terminal; a line of metrics in short."""
    from ci_tasks.registry import metric_formats
    from ci_tasks.results.progress import line_summary

    try:
        with open_file(run.log) as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - _TAIL))
            lines = [line for line in source.read().splitlines() if line.strip()]
    except OSError:
        return ""
    return line_summary(lines[-1], metric_formats()) if lines else ""
