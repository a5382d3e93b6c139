"""Rows and hosts as placement sees them, and how long rows are expected to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from ci_tasks.agent.quick_dataclass import dataclass

# What is left of a row that ran past its estimate, as a part of the time it has run.
OVERRUN = 0.25
_SHORTEST, _LONGEST = 0.01, 30 * 86400.0


@dataclass(frozen=True)
class WaitingRow:
    """`seconds` is how long the row is expected to take on a host of speed 1. Two rows with one name in `exclusive`
    never share a host. `hosts`: where it may run (None: anywhere). `waited`: seconds since it could first have begun.
    """

    name: str
    gpus: int
    seconds: float
    exclusive: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None
    image: str | None = None
    waited: float = 0.0

    @property
    def length(self) -> float:
        """The expected seconds, whatever history says."""
        seconds = self.seconds if isfinite(self.seconds) and self.seconds >= 0 else prior(self.gpus)
        return min(max(seconds, _SHORTEST), _LONGEST)


@dataclass(frozen=True)
class StartedRow:
    """A row that was started `since` seconds ago; it may still wait there."""

    row: WaitingRow
    since: float


@dataclass(frozen=True)
class HostLoad:
    """A host at this moment. `slots` bounds its rows, `held` counts the GPUs that others hold. A host that is not `up`
    gets no new row. `speed` 2: rows take half as long as elsewhere. `queues`: it has a scheduler, such as Slurm."""

    name: str
    gpus: int
    slots: int
    held: int = 0
    up: bool = True
    images: frozenset[str] = frozenset()
    has_code: bool = True
    started: tuple[StartedRow, ...] = ()
    speed: float = 1.0
    queues: bool = False

    def seconds(self, row: WaitingRow) -> float:
        """How long the row is expected to take here."""
        return row.length / self.speed

    def remaining(self, started: StartedRow) -> float:
        """Seconds until a row that runs here is expected to end; always more than 0."""
        left = self.seconds(started.row) - started.since
        return left if left > 0 else max(OVERRUN * started.since, _SHORTEST)

    def can_hold(self, row: WaitingRow) -> bool:
        allowed = row.hosts is None or self.name in row.hosts
        return allowed and self.up and self.slots > 0 and self.gpus >= row.gpus


def prior(gpus: int) -> float:
    """Expected seconds of a row of which nothing is known. slime's CPU rows took 0.1 to 217 s; its GPU rows take
    minutes to tens of minutes, those on many GPUs longer."""
    return 300.0 + 75.0 * gpus if gpus > 0 else 30.0


@dataclass(frozen=True)
class ExpectedTime:
    """How many seconds a row is expected to take. A guess places rows; only what is `from_history` is shown."""

    seconds: float
    from_history: bool = False


def expected(row: str, durations: Mapping[str, float], gpus: int) -> ExpectedTime:
    """How long `row` is expected to take, by those of rows that ran. A mode of a test that never ran (`test[mode]`) is
    taken to last as long as the other modes did."""
    if row in durations:
        return ExpectedTime(durations[row], from_history=True)
    test = row.partition("[")[0]
    siblings = [seconds for name, seconds in durations.items() if name.partition("[")[0] == test]
    return ExpectedTime(_median(siblings) if siblings else prior(gpus))


def speed(everywhere: Mapping[str, float], here: Mapping[str, float]) -> float:
    """The speed of a host by its rows' seconds. A row that never ran there has the seconds of all hosts in `here`."""
    ratios = [everywhere[row] / here[row] for row in here if here[row] > 0 and everywhere.get(row, 0.0) > 0]
    return _median([ratio for ratio in ratios if ratio != 1] or [1.0])


def _median(values: Sequence[float]) -> float:
    """As `statistics` has it, whose import takes longer than planning a label."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
