"""py-spy, which reads the stacks of a run's processes: a static program, sent once to each host, by its hash.

It has 8 MB, 3 MB on the way. An agent looks by itself no earlier than 95 s after a run's start, so a host gets it when
a run there has gone on for a minute, or when the client leaves the host to itself: short runs never wait for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zlib
from pathlib import Path

from ci_tasks.agent.hang.look import PY_SPY, TOOLS
from ci_tasks.agent.serving.messages import StoreProgram
from ci_tasks.hosts.connection import ReconnectingConnection

_CHUNK = 1 << 18
_SECONDS = 10.0


def find_py_spy() -> Path | None:
    """The program beside our own Python; None if it was not installed."""
    places = [Path(sys.prefix, "bin"), Path(sys.executable).parent]
    return next((place / "py-spy" for place in places if os.access(place / "py-spy", os.X_OK)), None)


def keep_here(home: Path) -> None:
    """Let the agents of this machine's runs find it."""
    program = find_py_spy()
    target = home / TOOLS / f"{PY_SPY}{_digest(program)}" if program else home
    if program is not None and not target.exists():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(program, beside)
        os.replace(beside, target)


def send(connection: ReconnectingConnection) -> None:
    """Let the agents of a host find it, if that has our machine type. Raises what the connection raises."""
    program = find_py_spy()
    if program is None or was_sent(connection):
        return
    machine = connection.run_queries({"machine": ("uname", "-sm")}, _SECONDS)["machine"].out.split()
    if machine == [os.uname().sysname, os.uname().machine]:
        packed = zlib.compress(program.read_bytes())
        chunks = (packed[at : at + _CHUNK] for at in range(0, len(packed), _CHUNK))
        connection.channel().post(StoreProgram("py-spy-", _digest(program)), pack=chunks).wait()
    connection.cache.py_spy = _digest(program)


def was_sent(connection: ReconnectingConnection) -> bool:
    """Whether an earlier command has made sure that the host has it."""
    program = find_py_spy()
    return program is None or connection.cache.py_spy == _digest(program)


def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()
