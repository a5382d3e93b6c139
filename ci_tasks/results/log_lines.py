"""A line of a log as a terminal may show it: without escape sequences and control characters, of bounded length."""

from __future__ import annotations

import re

_ANSI = re.compile(
    r"_?bk;t=\d+\x07|\x1b_[^\x07\x1b]{0,200}(?:\x07|\x1b\\)?"  # Buildkite's timestamps
    r"|\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]|\^\[\[[0-9;]*m"
)
_LONGEST = 4000


def visible(raw: bytes, longest: int = _LONGEST) -> str:
    """The line as text that is safe for a terminal, of bounded length."""
    text = raw.rstrip(b"\r\n")[:longest].decode("utf-8", "replace")
    if "\x1b" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    text = text.replace("\xa0", " ").replace("\ufeff", "")  # GitHub's raw logs begin each step with a byte order mark
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\t" else "�" for char in text)
    return text.rstrip()


def segments(raw: bytes) -> list[bytes]:
    """What a terminal would have shown one after another in the same line: a progress bar, and what is glued onto
    it."""
    if b"\r" not in raw:
        return [raw]
    return [segment for segment in raw.rstrip(b"\r\n").split(b"\r") if segment.strip()][-20:] or [b""]
