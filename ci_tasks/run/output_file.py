"""A file that a person named for a report."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ci_tasks.errors import UsageError


def write_file(path: Path, text: Iterable[str]) -> None:
    """Write a file whole or not at all. Raises UsageError where it cannot be there."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {path.absolute().parent}", hint="make it, or name another file")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A path that is no UTF-8 may stand in a record as a lone surrogate.
        with open(beside, "x", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.writelines(text)
        os.replace(beside, path)
    except OSError as error:  # a full disk's has no name
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)
