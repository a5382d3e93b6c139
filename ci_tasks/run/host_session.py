"""A host that takes part in a command, as far as its rows are concerned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.hosts.executor import Executor
from ci_tasks.planning.placement import HostFacts, missing_resources
from ci_tasks.report.live import HostProgress
from ci_tasks.workflow.model import Row


@dataclass
class HostSession:
    """A host that takes part. `facts` are None until it has answered; `unusable_reason` says why nothing can run there;
    `activity` what it does before its rows begin; `row_problems` which rows lack a download there, and why.
    `first_rows` says of the first two rows that ended there whether no test was seen. A host that `is_dropped` gets no
    rows while another one can run them. `away_since`: it is being prepared or reconnected."""

    executor: Executor
    facts: HostFacts | None = None
    unusable_reason: str = ""
    activity: str = "connecting"
    is_ready: bool = False
    locked_gpus: frozenset[int] = frozenset()
    images: frozenset[str] = frozenset()
    row_problems: Mapping[str, str] = field(default_factory=dict)
    first_rows: tuple[bool, ...] = ()
    is_dropped: bool = False
    away_since: float | None = None

    @cached_property
    def name(self) -> str:
        return self.spec.name

    @property
    def spec(self) -> HostSpec:
        return self.executor.spec

    @property
    def is_away(self) -> bool:
        """Whether rows may wait for it to be ready, or to be reachable again."""
        return not self.unusable_reason and not (self.is_ready and self.executor.is_up)

    def give_up_if_away(self) -> bool:
        """Whether the host has been away for so long that no row waits for it any longer; then it is unusable."""
        self.away_since = (self.away_since or time.monotonic()) if self.is_away else None
        minutes = self.spec.give_up_minutes
        if self.away_since is None or time.monotonic() - self.away_since <= 60 * minutes:
            return False
        what = "not reachable" if self.is_ready else f"not ready ({self.activity})"
        self.unusable_reason = f"{what} for {minutes:g} min; --give-up MINUTES waits longer"
        return True

    def missing_for(self, row: Row) -> tuple[str, ...]:
        """What keeps `row` from running there, as far as is known."""
        if self.unusable_reason or self.facts is None:
            return (self.unusable_reason,) if self.unusable_reason else ()
        problem = self.row_problems.get(row.row)
        return (*missing_resources(row, self.spec, self.facts), *([problem] if problem else []))

    def progress(self, ours: int) -> HostProgress:
        """How it stands, for a person; `ours` are the GPUs that our rows have there."""
        is_away = bool(self.unusable_reason) or (self.is_ready and not self.executor.is_up)
        gpus = None if self.facts is None or self.executor.has_scheduler else self.facts.gpus
        note = self.unusable_reason or self.activity or ("the link is down" if is_away else "")
        return HostProgress(self.name, gpus, max(0, len(self.locked_gpus) - ours), not is_away, note)
