"""The records of a comparison of two runs; `old` is the earlier state, `new` the one that is asked about. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.metrics import Series
from ci_tasks.records import FailureEvidence, Triage

COMMIT, IMAGE, PACKAGES, ENV, ARGUMENTS, DATA = "commit", "image", "packages", "env", "arguments", "data"
DRIVER, GPUS, KERNEL, HOST, DEVIATIONS = "driver", "gpus", "kernel", "host", "deviations"
SUBMODULE, OVERLAY = "submodule:", "overlay:"  # followed by a path, or a name
AXES = (COMMIT, IMAGE, PACKAGES, ENV, ARGUMENTS, DATA, DRIVER, GPUS, KERNEL, HOST, DEVIATIONS)
MOUNT = "mount "  # begins a name of DATA that is no revision
NO_VALUE = "–"  # a name that one side does not have
SHOWN, CONTRADICTED, NOT_SEEN = "shown", "contradicted", "not seen"  # of a claim, and of an input that was not shown
EXIT_CODES = {SHOWN: 0, CONTRADICTED: 1, NOT_SEEN: 1}


@dataclass(frozen=True)
class OverlaySide:
    """Where a side's overlay was, "" where that is not known here; its commit, "" with uncommitted changes; and the
    command of its build."""

    path: str = ""
    commit: str = ""
    build: str = ""


@dataclass(frozen=True)
class RunSide:
    """One side. `inputs` has what was seen of each axis, by name; an axis that is missing was not seen. `series` are
    its metrics by step, `seconds` by phase, `memory` in MiB by GPU. `commit` and `image` are what `--rev` and `--image`
    take: a tree with uncommitted changes, `dirty`, is none, and has only the `head` that they are on top of.
    `repository` is the directory that has the commits; `overlays` are by name. `label` is empty where it is not known.
    `log` is the file that its metrics were read from, "" without one; `from_ci`: it is CI's. Of an axis in `partial` a
    name that is missing was not seen: a log shows some packages only, and the revisions that it happened to name."""

    id: str
    label: str = ""
    row: str = ""
    host: str = ""
    status: str = ""
    started_at: str = ""
    head: str = ""
    dirty: tuple[str, ...] = ()
    image: str = ""
    repository: str = ""
    overlays: Mapping[str, OverlaySide] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    triage: Triage | None = None
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    log: str = ""
    from_ci: bool = False
    partial: frozenset[str] = frozenset()

    @property
    def commit(self) -> str:
        return "" if self.dirty else self.head

    @property
    def failure(self) -> FailureEvidence | None:
        return self.triage.evidence if self.triage else None


@dataclass(frozen=True)
class InputDifference:
    """`axis` is one of AXES, or begins with SUBMODULE or OVERLAY; `name` is the package, variable or file."""

    axis: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class OutputDifference:
    """What came out: `kind` is status, failure, metric, time or memory. `step` is the first at which a metric's values
    differ, `note` how far they part later."""

    kind: str
    name: str
    old: str
    new: str
    step: int | None = None
    note: str = ""


@dataclass(frozen=True)
class LikelyCause:
    """An axis that differs, why it stands where it does, and the command whose result would prove it."""

    axis: str
    why: str
    proof: str


@dataclass(frozen=True)
class RunDifference:
    """Two runs side by side. `same` are axes that were seen on both sides and are equal; `not_seen` has a line for
    those that one side, or both, did not show. `commits` are those between the two, newest first."""

    old: str
    new: str
    inputs: tuple[InputDifference, ...] = ()
    outputs: tuple[OutputDifference, ...] = ()
    causes: tuple[LikelyCause, ...] = ()
    same: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Divergence:
    """Where two runs first differ: the metric, the rank whose line it is ("" if the log names none), and both values;
    "nan" and "inf" are text."""

    name: str
    rank: str
    training: int
    step: int
    old: float | str
    new: float | str


@dataclass(frozen=True)
class ExactComparison:
    """Two runs bit for bit, as their logs print them. `outcome` is shown (equal), contradicted or not seen. `values`
    and `hashes` count what both have, `unmatched` what one alone has; `files` are those with different hashes."""

    old: str
    new: str
    outcome: str
    values: int
    hashes: int
    first: Divergence | None = None
    files: tuple[str, ...] = ()
    unmatched: int = 0


@dataclass(frozen=True)
class GoldenDifference:
    name: str
    step: str
    golden: float | str
    value: float | str


@dataclass(frozen=True)
class GoldenComparison:
    """A run against golden values. `outcome` is shown (all within the tolerance), contradicted, or not seen if the run
    lacks some of them: `missing` says which. `values` counts those that were compared."""

    run: str
    golden: str
    tolerance: float
    outcome: str
    values: int
    differences: tuple[GoldenDifference, ...] = ()
    missing: tuple[str, ...] = ()


def as_json(value: float) -> float | str:
    """JSON has no NaN and no infinity: their names."""
    return value if math.isfinite(value) else str(value)
