"""What a level's run was started with, kept in its directory, so that the run can be judged later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.codec import from_json, to_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.features.verl.levels.levels import LevelRequest

FILE = "verl.json"


@dataclass(frozen=True)
class LevelContext:
    """`command` repeats the run when it is pasted. `image` and `baseline` are "" where none was named, `simulated` says
    that the host simulates its GPUs. `remarks` are limitations that were known before the run, `scripts` the texts of
    the trainings' scripts, by their path."""

    request: LevelRequest
    bridge: Checkout
    verl: Checkout
    command: str
    host: str
    image: str = ""
    simulated: bool = False
    baseline: str = ""
    remarks: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        return {FILE: to_json(self, indent=1) + "\n"}


def read_context(directory: str) -> LevelContext | None:
    """The context of the run in `directory`; None where no level was started there from this machine."""
    try:
        with open(os.path.join(directory, FILE), encoding="utf-8") as source:
            return from_json(LevelContext, source.read(), where=FILE)
    except FileNotFoundError:
        return None
