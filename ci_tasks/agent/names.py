"""Names that come from a host or a job, checked before they become paths. Pure."""

from __future__ import annotations

import re

MAX_NAME_BYTES = 255  # of every file system of Linux
MAX_PATH_BYTES = 3500  # less than the kernel's 4096: names are added to it
MAX_DEPTH = 64
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class UnsafeName(ValueError):
    """A name that leads elsewhere, or that cannot be shown."""


def check_line(text: str, most: int) -> None:
    """Raises UnsafeName, unless it is one line of at most `most` bytes of UTF-8."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise UnsafeName("the name is not UTF-8") from None
    if size > most:
        raise UnsafeName("the name is longer than %d bytes" % most)
    if _CONTROL.search(text):
        raise UnsafeName("the name has control characters")


def check_relative_path(path: str) -> None:
    """Raises UnsafeName, unless it stays below the directory that it is relative to."""
    check_line(path, MAX_PATH_BYTES)
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise UnsafeName("the path has more than %d parts" % MAX_DEPTH)
    for part in parts:
        if part in ("", ".", ".."):
            raise UnsafeName("the name leads elsewhere")
        check_line(part, MAX_NAME_BYTES)


def check_absolute_path(path: str) -> None:
    """Raises UnsafeName, unless it is that of something below `/`, in its shortest form."""
    if not path.startswith("/"):
        raise UnsafeName("the path is not absolute")
    check_relative_path(path[1:])
