"""The records of a comparison of two runs; `old` is the earlier state, `new` the one that is asked about. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import FailureEvidence, Triage
from ci_tasks.results.metrics import Series

COMMIT, IMAGE, PACKAGES, ENV, ARGUMENTS, DATA = "commit", "image", "packages", "env", "arguments", "data"
DRIVER, GPUS, KERNEL, HOST, DEVIATIONS = "driver", "gpus", "kernel", "host", "deviations"
SUBMODULE, OVERLAY = "submodule:", "overlay:"  # followed by a path, or a name
AXES = (COMMIT, IMAGE, PACKAGES, ENV, ARGUMENTS, DATA, DRIVER, GPUS, KERNEL, HOST, DEVIATIONS)
MOUNT = "mount "  # begins a name of DATA that is no revision
NO_VALUE = "–"  # a name that one side does not have
NOT_SEEN = "not seen"  # of an input: it has one that was not shown


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
    `is_kept`: its run directory is here, so that commands take its id. Of an axis in `partial` a name that is missing
    was not seen: a log shows some packages only, and the revisions that it happened to name."""

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
    is_kept: bool = False
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
