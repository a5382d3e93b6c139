"""What is remembered of a host between two commands, so that a warm start asks nothing before it begins.

All of it can be wrong by now: the host says so, and then it is asked again. It saves time, it decides nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ci_tasks.model import HostSpec
from ci_tasks.runner.layout import read_json, write_json


@dataclass
class Memory:
    """`home` is where everything of ours lies on the host, `runner` the digest of the runner that it has, `pythons` are
    what setup-python's versions mean there, `containers` is the runtime that was found to work,
    `pruned_at` when the host last forgot old objects, in seconds since the epoch."""

    home: str = ""
    runner: str = ""
    pythons: dict[str, tuple[str, str]] = field(default_factory=dict)
    gpus: int | None = None
    containers: str = ""
    pruned_at: float = 0.0

    def forget_facts(self) -> None:
        self.home, self.pythons, self.gpus, self.containers = "", {}, None, ""


def key(spec: HostSpec) -> str:
    """A file name for the host: another address under the same name is another host."""
    return f"{spec.name}-{hashlib.sha256(f'{spec.address} {spec.workspace}'.encode()).hexdigest()[:10]}"


def load(path: Path) -> Memory:
    try:
        found: dict[str, Any] = read_json(str(path))
        pythons = {wanted: (str(one[0]), str(one[1])) for wanted, one in found.pop("pythons", {}).items()}
        return Memory(**found, pythons=pythons)
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return Memory()


def save(path: Path, memory: Memory) -> None:
    """A memory that cannot be written is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(str(path), asdict(memory))
    except OSError:
        pass
