"""What the log of verl's trainings says, as values; nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.resolved_settings import Settings
from ci_tasks.records import Triage

Metrics = Mapping[int, Mapping[str, float]]  # global step → metric → value
# The keys of the preflight's marks.
BRIDGE_CHECKS, DRIVER, WORKER = "bridge-checks", "import-driver", "import-worker"
RAY, MODELOPT, DEVICES, DATA = "ray", "modelopt", "devices", "data"
REWARD_MODEL, MODEL, ROOM = "reward-model", "model", "room"
KEYS = (BRIDGE_CHECKS, DRIVER, WORKER, RAY, MODELOPT, DEVICES, DATA, REWARD_MODEL, MODEL, ROOM)


@dataclass(frozen=True)
class QuotedLine:
    """A line of the log: its 1-based number, and its text as a terminal may have it."""

    line_no: int
    text: str


@dataclass(frozen=True)
class PreflightCheck:
    """What the preflight found: `status` is pass, fail, skipped or blocked; of Bridge's checks on a host that simulates
    also simulated."""

    key: str
    status: str
    text: str
    line_no: int


@dataclass(frozen=True)
class LoggedFailure:
    """An error that the log has: the last line of a traceback with its `frames` (`file:function`, outermost first), or
    a line that says of a process that it died. `construction` says that a frame lies in Bridge or in verl's code around
    it. `finished` that all steps were done by then."""

    line_no: int
    text: str
    frames: tuple[str, ...] = ()
    construction: bool = False
    finished: bool = False
    process: str = ""

    @property
    def place(self) -> str:
        return self.process or f"line {self.line_no}"


@dataclass
class TrainingFacts:
    """One training, from its begin to its end or to the end of the log. Only `training_log` changes one, as it reads.

    `exit_code` is None where it did not end. `progress` is (done, total) when the progress bar was seen last.
    `construction` has the first line of each thing that Bridge-managed construction says, and `frame` the first of a
    traceback that lies in it. `trainable` is the number of trainable parameters, None where the log does not say.
    `noise` is what was said after the last step and is known to be harmless. `bridge_paths` are directories from
    which megatron.bridge was loaded, each where it was seen first. `error` counts lines of the whole log; it is None
    where the training ended well. `files` are SHA-256 of those of its last checkpoint, where they were asked for.
    `failures` are all that the log has, whatever the exit code. `starts` counts how often the trainer printed its
    settings. `began_at` and `ended_at` are seconds since 1970.
    """

    name: str
    line_no: int
    exit_code: int | None = None
    command: str = ""
    settings: Settings = field(default_factory=Settings)
    progress: tuple[int, int] | None = None
    progress_seen: QuotedLine | None = None
    metrics: Metrics = field(default_factory=dict)
    metrics_seen: QuotedLine | None = None
    resumed_from: int | None = None
    resumed_seen: QuotedLine | None = None
    scratch: QuotedLine | None = None
    construction: Mapping[str, QuotedLine] = field(default_factory=dict)
    frame: QuotedLine | None = None
    trainable: int | None = None
    trainable_seen: QuotedLine | None = None
    noise: tuple[QuotedLine, ...] = ()
    proofs: Mapping[str, QuotedLine] = field(default_factory=dict)
    bridge_paths: Mapping[str, QuotedLine] = field(default_factory=dict)
    error: Triage | None = None
    failures: tuple[LoggedFailure, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    began_at: float | None = None
    ended_at: float | None = None

    @property
    def finished(self) -> bool:
        return self.progress is not None and 0 < self.progress[1] <= self.progress[0]

    def constructed(self, before: int | None = None) -> bool:
        """Whether Bridge-managed construction had begun, at the line `before` if one is given."""
        if self.frame is not None:
            return True
        reached = [*self.construction.values(), *(line for line in (self.progress_seen, self.metrics_seen) if line)]
        return any(before is None or line.line_no < before for line in reached)


@dataclass(frozen=True)
class RunFacts:
    """`error` is what the log says of a failure before any training began."""

    preflight: Mapping[str, PreflightCheck]
    trainings: Mapping[str, TrainingFacts]
    error: Triage | None = None
