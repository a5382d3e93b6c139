"""How far the command of a batch is, and which process that is: state.json beside its rows.

preparing    the code, the hosts and the plans
installing   the install steps that its rows share
running      rows start and run; one that has not begun waits
ended        the command is over, or has left its rows to themselves

A process that was killed writes nothing: that is found out by whoever looks next, from its pid, its start and the boot.
A batch without the file was only planned.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ci_tasks.agent import processes
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import read_record, write_record

Phase = Literal["preparing", "installing", "running", "ended"]

_NAME = "state.json"
_BELIEVED = 24 * 3600.0  # seconds
_DOING = {
    "preparing": "before its rows were prepared",
    "installing": "during the install steps",
    "running": "before the row began",
}


@dataclass(frozen=True)
class BatchState:
    """`machine`, `pid`, `pid_start` and `boot_id` tell the command's process, its owner, from any other."""

    phase: Phase
    pid: int
    pid_start: str | None
    boot_id: str | None
    machine: str
    written_at: float

    @property
    def owner(self) -> processes.Identity:
        return processes.Identity(self.pid, self.pid_start, self.boot_id)

    @property
    def is_here(self) -> bool:
        """Whether its process is one of this machine: a home may be shared with others."""
        return self.machine == os.uname().nodename

    @property
    def is_active(self) -> bool:
        """Whether the command still works on its rows. One on another machine is believed for a day."""
        if self.phase == "ended":
            return False
        return processes.is_running(self.owner) if self.is_here else time.time() < self.written_at + _BELIEVED

    @property
    def was_killed(self) -> bool:
        return self.phase != "ended" and not self.is_active

    @property
    def why_not_started(self) -> str:
        """Why a row of it has not begun, when it is not active."""
        if self.phase == "ended":
            return "the command ended before the row began"
        restarted = self.boot_id not in (None, processes.boot_id())
        return f"{'the machine restarted' if restarted else 'the client was killed'} {_DOING[self.phase]}"


def write_phase(batch: str | Path, phase: Phase) -> None:
    """Put the phase of this process's command on record. A batch that is gone by now needs none; nor does the end
    where the disk is full: it is found out. Raises OSError."""
    me = processes.identity()
    state = BatchState(phase, me.pid, me.pid_start, me.boot_id, os.uname().nodename, time.time())
    with suppress(*((OSError,) if phase == "ended" else (FileNotFoundError,))):
        write_record(os.path.join(batch, _NAME), state)


def read_state(batch: str | Path) -> BatchState | None:
    """None for a batch that was only planned. Raises RecordError, OSError."""
    return read_record(BatchState, os.path.join(batch, _NAME))


def read_state_if_readable(batch: str | Path) -> BatchState | None:
    """The same, and None where the file cannot be read: of a batch that is looked for."""
    try:
        return read_state(batch)
    except (OSError, ValueError):
        return None
