"""py-spy on a host: a client sends it once, and it is kept below the home of all runs, named by its content."""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from typing import Iterable

from ..files import content_of, replace_file

MAX_PROGRAM = 64 << 20  # bytes
TOOLS = "tools"
PY_SPY = "py-spy-"


def find_py_spy(run_dir: str) -> bytes:
    """The program that a client has sent to the host of a run, for a machine like this one; empty if there is none."""
    directory = os.path.join(os.path.abspath(run_dir).rpartition("/runs/")[0] or "/nowhere", TOOLS)
    machine = content_of(sys.executable, 20)[18:]  # as an ELF header says it
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        content = content_of(os.path.join(directory, name), MAX_PROGRAM + 1)
        if content[18:20] == machine and name == PY_SPY + hashlib.sha256(content).hexdigest():
            return content
    return b""


def store_program(home: str, prefix: str, sha256: str, chunks: Iterable[bytes]) -> None:
    """Keep a program below `home`, under its hash; `chunks` are zlib's form of it. Raises OSError, and ValueError if it
    has another hash."""
    try:
        program = zlib.decompressobj().decompress(b"".join(chunks), MAX_PROGRAM + 1)
    except zlib.error as error:
        raise ValueError("the program is not in zlib's form: %s" % error) from None
    if hashlib.sha256(program).hexdigest() != sha256:
        raise ValueError("the program is not the one with this hash, or larger than %d MiB" % (MAX_PROGRAM >> 20))
    path = os.path.join(home, TOOLS, prefix + sha256)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    replace_file(path, program)


def remove_old_programs(home: str, oldest: float) -> None:
    """Those that were stored before `oldest`, in seconds since the epoch; the newest stays."""
    directory = os.path.join(home, TOOLS)
    entries = os.scandir(directory) if os.path.isdir(directory) else ()
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-1]:
        if entry.stat().st_mtime < oldest:
            os.unlink(entry.path)
