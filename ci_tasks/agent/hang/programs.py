"""py-spy on a host: a client sends it once, and it is kept below the home of all runs, named by its content."""

from __future__ import annotations

import hashlib
import os
import zlib
from typing import Iterable, NamedTuple

from ..files import content_of, replace_file

MAX_PROGRAM = 64 << 20  # bytes
TOOLS = "tools"
PY_SPY = "py-spy-"
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


class PySpy(NamedTuple):
    """The program, or why it cannot be used here. Its `content` serves containers, which may run it though the host's
    file system lets nobody."""

    path: str = ""
    why_not: str = ""
    content: bytes = b""


def find_py_spy(run_dir: str) -> PySpy:
    """What a client has sent to the host of a run."""
    directory = os.path.join(os.path.abspath(run_dir).rpartition("/runs/")[0] or "/nowhere", TOOLS)
    machine, others = os.uname().machine, set()
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith(PY_SPY))
    except OSError:
        names = []
    for name in names:
        path = os.path.join(directory, name)
        content = content_of(path, MAX_PROGRAM + 1)
        if name != PY_SPY + hashlib.sha256(content).hexdigest():
            continue
        made_for = _ELF_MACHINES.get(int.from_bytes(content[18:20], "little"), "another machine")
        if made_for == machine:
            why_not = "py-spy may not run: %s is on a file system mounted noexec" % path if _is_noexec(path) else ""
            return PySpy("" if why_not else path, why_not, content)
        others.add(made_for)
    if others:
        return PySpy(why_not="py-spy is here for %s, not for %s" % (", ".join(sorted(others)), machine))
    who = "a client on %s sends it a minute after a run's start, or with `ci-tasks hang`" % machine
    return PySpy(why_not="py-spy is not on this host: %s" % who)


def store_program(home: str, prefix: str, sha256: str, chunks: Iterable[bytes]) -> None:
    """Keep a program below `home`, under its hash; `chunks` are zlib's form of it. Raises OSError, and ValueError if it
    has another hash."""
    try:
        program = zlib.decompressobj().decompress(b"".join(chunks), MAX_PROGRAM + 1)
    except zlib.error as error:
        raise ValueError("the program is not in zlib's form: %s" % error) from None
    if len(program) > MAX_PROGRAM:
        raise ValueError("a program of more than %d MiB" % (MAX_PROGRAM >> 20))
    if hashlib.sha256(program).hexdigest() != sha256:
        raise ValueError("the program is not the one with this hash")
    path = os.path.join(home, TOOLS, prefix + sha256)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    replace_file(path, program)
    os.chmod(path, 0o755)


def remove_old_programs(home: str, oldest: float) -> None:
    """Those that were stored before `oldest`, in seconds since the epoch; the newest stays."""
    try:
        found = sorted(os.scandir(os.path.join(home, TOOLS)), key=lambda entry: entry.stat().st_mtime)
    except OSError:
        return
    for entry in found[:-1]:
        if entry.stat().st_mtime < oldest:
            os.unlink(entry.path)


def _is_noexec(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
