"""The last line of a log that grows and says something: no end of a group, no line of `====`."""

from __future__ import annotations

import os
import re

from ci_tasks.agent.files import open_file
from ci_tasks.agent.run_directory import RunDir

_MARKER = re.compile(r"^(?:##\[\w+\]|::endgroup::|::group::)")
_RULES = re.compile(r"^([=*#~_-])\1{2,}\s*|\s*([=*#~_-])\2{2,}$")
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
    return next((text for line in reversed(lines) if (text := _words(line_summary(line, formats)))), "")


def _words(text: str) -> str:
    """The text without markers of GitHub's log and rules around it; "" where no word is left."""
    text = _RULES.sub("", _MARKER.sub("", text))
    return text if any(char.isalnum() for char in text) else ""
