"""The records of `numbers`: what one run gave, what several gave, and what does not fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass

# Quantities beside the metrics that a log has by step.
SECONDS, MEMORY = "seconds", "GPU memory, MiB"


def as_json(value: float) -> float | str:
    """JSON has no NaN and no infinity: their names."""
    return value if math.isfinite(value) else str(value)


def from_json(value: float | str) -> float:
    """A text that is no name of a number is none."""
    return float(value) if not isinstance(value, str) or value in ("inf", "-inf") else math.nan


@dataclass(frozen=True)
class MetricPoint:
    """A value of a metric in its `training` (from 1) at `step`; `step` is None for a value that a run has once."""

    training: int
    step: int | None
    value: float


@dataclass(frozen=True)
class RunNumbers:
    """What a run gave. `kind` is what numbers are compared within: the GPUs and the image. `is_marked`: it did not fit
    when it ended."""

    id: str
    started_at: str
    kind: str
    values: Mapping[str, tuple[MetricPoint, ...]] = field(default_factory=dict)
    is_marked: bool = False


@dataclass(frozen=True)
class Band:
    """What `runs` passing runs gave of one quantity at one step: a healthy run is within `low` to `high`."""

    name: str
    training: int
    step: int | None
    runs: int
    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True)
class Mark:
    """A value outside of its band; `sigma` is how many standard deviations from the mean, None where the runs before
    were all equal, and of a value that is no finite number, which is its name ("nan")."""

    name: str
    training: int
    step: int | None
    value: float | str
    mean: float
    sigma: float | None
    runs: int

    @property
    def sentence(self) -> str:
        where = "" if self.step is None else f" at step {self.step}"
        which = f" of training {self.training}" if self.training > 1 else ""
        if isinstance(self.value, str):
            return f"{self.name}{where}{which} is {self.value}; {self.runs} runs before gave {self.mean:.4g}"
        if self.sigma is None:
            return f"{self.name}{where}{which} is {self.value:.6g}; in all {self.runs} runs before {self.mean:.6g}"
        way = "high" if self.sigma > 0 else "low"
        return (
            f"{self.name}{where}{which} is {abs(self.sigma):.1f} sigma {way} "
            f"({self.value:.4g}; {self.runs} runs gave {self.mean:.4g})"
        )


@dataclass(frozen=True)
class Drift:
    """A quantity whose mean changed between two runs, and stayed so. `p` is the probability of such a change by chance,
    corrected for all places and quantities that were tried."""

    name: str
    since: str
    since_time: str
    before: float
    after: float
    p: float


@dataclass(frozen=True)
class Acceptance:
    """Somebody said that the numbers from this run on are right: earlier ones do not count any more."""

    label: str
    row: str
    kind: str
    run: str
    by: str
    at: str
    why: str


@dataclass(frozen=True)
class RowNumbers:
    """A row on one kind of host and image. `marks` are of its newest run, against the runs before it; `unseen` counts
    the bands that it has no value for; `not_seen` says why there is no band."""

    label: str
    row: str
    kind: str
    runs: int
    newest: str = ""
    bands: tuple[Band, ...] = ()
    marks: tuple[Mark, ...] = ()
    drifts: tuple[Drift, ...] = ()
    accepted: Acceptance | None = None
    not_seen: str = ""
    unseen: int = 0

    @property
    def was_compared(self) -> bool:
        return self.unseen < len(self.bands)


@dataclass(frozen=True)
class BandsFile:
    """A file that a team commits: bands of rows, and who accepted what and why."""

    rows: tuple[RowNumbers, ...] = ()
    accepted: tuple[Acceptance, ...] = ()


@dataclass(frozen=True)
class Parting:
    """Where two runs first differ: the metric, the rank whose line it is ("" where the log names none), and both
    values as the log prints them; "nan" and "inf" are text."""

    name: str
    rank: str
    training: int
    step: int
    old: float | str
    new: float | str


@dataclass(frozen=True)
class ExactComparison:
    """Two runs bit for bit, as their logs print the numbers. `compared` counts values that both have; with none nothing
    was seen. `unmatched` counts those that one of them alone has. The kinds are what numbers are compared within."""

    old: str
    new: str
    compared: int
    first: Parting | None = None
    unmatched: int = 0
    old_kind: str = ""
    new_kind: str = ""
