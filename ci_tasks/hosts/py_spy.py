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

from ci_tasks.agent.hang.programs import PY_SPY, TOOLS
from ci_tasks.agent.serving.messages import RunPrograms, StoreProgram
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
    target = home / TOOLS / _name(program) if program else None
    if program is not None and target is not None and not target.exists():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(program, beside)
        os.replace(beside, target)


def send(connection: ReconnectingConnection) -> None:
    """Let the agents of a host find it, if that has our machine type. Raises what the connection raises."""
    program = find_py_spy()
    if program is None:
        return
    name, commands = (
        _name(program),
        {"machine": ("uname", "-sm"), "tools": ("ls", f"{connection.hello().home}/{TOOLS}")},
    )
    outputs = connection.request(RunPrograms(commands, _SECONDS)).outputs
    is_like_ours = outputs["machine"].out.split() == [os.uname().sysname, os.uname().machine]
    if is_like_ours and name not in outputs["tools"].out.split():
        packed = zlib.compress(program.read_bytes())
        chunks = (packed[at : at + _CHUNK] for at in range(0, len(packed), _CHUNK))
        connection.channel().post(StoreProgram("py-spy-", name[len(PY_SPY) :]), pack=chunks).wait()
    connection.cache.py_spy = name


def was_sent(connection: ReconnectingConnection) -> bool:
    """Whether an earlier command has made sure that the host has it."""
    program = find_py_spy()
    return program is None or connection.cache.py_spy == _name(program)


def _name(program: Path) -> str:
    return f"{PY_SPY}{hashlib.sha256(program.read_bytes()).hexdigest()}"
