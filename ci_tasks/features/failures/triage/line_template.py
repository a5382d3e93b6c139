"""A line's template: its text without what differs between two runs, so that runs can be compared line by line.

It is coarser than a signature: numbers, ids, addresses, URLs and whole paths go, also where they are part of a name
(`node07`, `rank3`). Give it a line without prefixes (`log_prefixes.read(…).text`).
"""

from __future__ import annotations

import re

_LONGEST = 400  # characters that count; a line of settings or of a model's output has thousands
_URL = re.compile(r"\b[a-z][a-z0-9+]{1,10}://[^\s'\"<>)\]]+")
_PATH = re.compile(r"(?<![\w.])(?:~|\.{1,2})?(?:/[\w.@+~=:-]+)+/?|\b[A-Z]:\\[^\s'\"]+|\b(?:[\w.-]+/){2,}[\w.-]+")
_ID = re.compile(r"\b(?:0x)?(?=[a-f-]*\d)[0-9a-f][0-9a-f-]{6,}\b", re.I)
_NUMBER = re.compile(r"[-+]?\d[\d.,:]*(?:e[-+]?\d+)?", re.I)
_LIST = re.compile(r"#(?:[\s,;x/|-]*#)+")
_BAR = re.compile(r"[█▉▊▋▌▍▎▏#=*_.~-]{3,}|[█▉▊▋▌▍▎▏]+")
_SPACE = re.compile(r"\s+")


def masked(text: str) -> str:
    """The template of a line: equal for two lines that differ only in numbers, ids, paths, addresses and spaces."""
    text = _URL.sub("<url>", text[:_LONGEST])
    text = _PATH.sub("<path>", text)
    text = _ID.sub("#", text)
    text = _NUMBER.sub("#", text)
    text = _LIST.sub("#", text)
    text = _BAR.sub("…", text)
    return _SPACE.sub(" ", text).strip()
