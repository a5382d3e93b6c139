"""py-spy, which reads the stacks of a run's processes: a static program, sent once to each host, by its hash.

It has 8 MB, 3 MB on the way. An agent looks by itself no earlier than 95 s after a run's start, so a host gets it when
a run there has gone on for a minute, or when the client leaves the host to itself: short runs never wait for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.hang.programs import PY_SPY, TOOLS
from ci_tasks.agent.serving.messages import RunPrograms, StoreProgram

if TYPE_CHECKING:
    from ci_tasks.hosts.reconnecting import ReconnectingConnection

_CHUNK = 1 << 18
_SECONDS = 10.0


def find_py_spy() -> Path | None:
    """The program beside our own Python; None where it was not installed."""
    places = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    return next((place / "py-spy" for place in places if os.access(place / "py-spy", os.X_OK)), None)


def keep_here(home: Path) -> None:
    """Let the agents of this machine's runs find it."""
    program = find_py_spy()
    target = home / TOOLS / f"{PY_SPY}{_digest(program)}" if program else None
    if program is None or target is None or target.exists():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(program, beside)
    os.replace(beside, target)


def send(connection: ReconnectingConnection) -> None:
    """Let the agents of a host find it, if that has our machine type. Raises what the connection raises."""
    program = find_py_spy()
    if program is None:
        return
    name = f"{PY_SPY}{_digest(program)}"
    _send(connection, program, name)
    connection.cache.py_spy = name


def was_sent(connection: ReconnectingConnection) -> bool:
    """Whether an earlier command has made sure that the host has it."""
    program = find_py_spy()
    return program is None or connection.cache.py_spy == f"{PY_SPY}{_digest(program)}"


def _send(connection: ReconnectingConnection, program: Path, name: str) -> None:
    commands = {"machine": ("uname", "-sm"), "tools": ("ls", f"{connection.hello().home}/{TOOLS}")}
    outputs = connection.request(RunPrograms(commands, _SECONDS)).outputs
    is_like_ours = outputs["machine"].out.split() == [os.uname().sysname, os.uname().machine]
    if not is_like_ours or name in outputs["tools"].out.split():
        return
    chunks = _compressed(program.read_bytes())
    connection.channel().post(StoreProgram("py-spy-", name.removeprefix(PY_SPY)), pack=chunks).wait()


def _compressed(content: bytes) -> Iterator[bytes]:
    packing = zlib.compressobj()
    for at in range(0, len(content), _CHUNK):
        packed = packing.compress(content[at : at + _CHUNK])
        if packed:  # an empty one is the end
            yield packed
    yield packing.flush()


def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()
