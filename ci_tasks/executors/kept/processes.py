"""The processes that keep connections: which there are, and their end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import CiTasksError
from ci_tasks.executors.kept import places

_PATIENCE_S = 2.0  # of a question


@dataclass(frozen=True)
class KeptConnection:
    """A process that keeps a connection, and how long it does if nobody uses it."""

    address: str
    pid: int
    is_up: bool
    commands: int
    seconds_left: float


def kept_connections() -> list[KeptConnection]:
    """Those of this user that answer."""
    return [KeptConnection(**answer) for _, answer in _asked({"status": True})]


def end(address: str | None = None) -> list[KeptConnection]:
    """End those to `address`, or all. Commands that use one reconnect by themselves."""
    ended = []
    for path, answer in list(_asked({"status": True})):
        if address is None or answer["address"] == address:
            with contextlib.suppress(OSError):
                _ask(path, {"end": True})
            ended.append(KeptConnection(**answer))
    return ended


def _asked(request: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    place = places.directory()
    for path in sorted(place.glob("*.sock")) if place else []:
        try:
            yield path, _ask(path, request)
        except (OSError, CiTasksError):  # it has ended
            continue


def _ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    from ci_tasks.executors.kept import wire  # most often no connection is kept

    with wire.dial(path) as sock:
        sock.settimeout(_PATIENCE_S)
        wire.send_request(sock, request)
        return wire.read_object(sock)[1]
