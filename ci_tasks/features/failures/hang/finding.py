"""What one rule concludes of a hang. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.hang.processes import Process, ThreadState

SHOWN = "shown"


@dataclass(frozen=True)
class Finding:
    """`kind` is one word for what it is, `reason` one line; `outcome` as in `records.Hang`."""

    kind: str
    reason: str
    culprits: Sequence[tuple[Process, ThreadState]] = ()
    outcome: str = SHOWN


def odd_of_two(groups: Sequence[Sequence[Process]], why: str) -> Finding | None:
    """One rank against the others is the odd one; of one against one both are named; more may be two process groups."""
    odd, rest = sorted(groups, key=len)
    if len(odd) != 1:
        return None
    named = [odd[0], rest[0]] if len(rest) == 1 else odd
    reason = f"the ranks are in different collectives: {why}"
    return Finding("collectives differ", reason, mains_of(named))


def mains_of(processes: Sequence[Process]) -> list[tuple[Process, ThreadState]]:
    return [(process, process.main) for process in processes]
