"""What is remembered of a host between two commands, so that a warm start asks nothing before it begins.

All of it can be wrong by now: the host says so, and then it is asked again. It saves time, it decides nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import field
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import read_record, write_record
from ci_tasks.config import HostSpec


@dataclass
class HostCache:
    """`home` is where everything of ours lies on the host. `agent_digest` is that of the agent that it has, `compiled`
    that of the same with byte code. `pythons` are what setup-python's versions mean there, `working_runtime` is the
    container runtime that was found to work, `pruned_at` when the host last forgot old objects, in seconds since the
    epoch, `py_spy` the one that it has."""

    home: str = ""
    agent_digest: str = ""
    compiled: str = ""
    pythons: dict[str, tuple[str, str]] = field(default_factory=dict)
    gpus: int | None = None
    working_runtime: str = ""
    pruned_at: float = 0.0
    py_spy: str = ""

    def clear_facts(self) -> None:
        self.home, self.pythons, self.gpus, self.working_runtime, self.py_spy = "", {}, None, "", ""


def key(spec: HostSpec) -> str:
    """A file name for the host: another address under the same name is another host."""
    return f"{spec.name}-{hashlib.sha256(f'{spec.address} {spec.workspace}'.encode()).hexdigest()[:10]}"


def load(path: Path) -> HostCache:
    with contextlib.suppress(OSError, ValueError):
        return read_record(HostCache, str(path)) or HostCache()
    return HostCache()


def save(path: Path, memory: HostCache) -> None:
    with contextlib.suppress(OSError):  # a memory that cannot be written is no reason to stop
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(str(path), memory)
