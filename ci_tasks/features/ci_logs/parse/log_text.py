"""Bytes of a log → text that may be stored and shown."""

from __future__ import annotations

import re

from ci_tasks.errors import printable

_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,40}[ -/]{0,8}[@-~]")
CYAN = b"\x1b[36;1m"  # what the runner puts before each line of a script, and before nothing else
_RESET = b"\x1b[0m"


def printable_text(raw: bytes, longest: int = 4000) -> str:
    """A line as text: no colour, no control character but the tab, of bounded length."""
    line = raw[:longest]
    return printable((_ANSI.sub(b"", line) if b"\x1b" in line else line).decode("utf-8", "replace"))


def script_line(raw: bytes) -> str:
    """A line of a script as the runner echoes it: without the cyan around it, otherwise as it is but for control
    characters."""
    line = raw.removeprefix(CYAN)
    return printable((line.removesuffix(_RESET) if line is not raw else line).decode("utf-8", "replace"))
