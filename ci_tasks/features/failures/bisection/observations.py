"""What runs of commits have said, counted per commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

PASS, FAIL, BLOCKED, MISSING = "pass", "fail", "blocked", "missing"


@dataclass(frozen=True)
class Observation:
    """One run of the commit at `position`.

    `kind` is PASS, FAIL (with its `signature`), BLOCKED (the environment could not run it) or MISSING (the row does not
    exist at that commit). `reason` is the run's own line; `run`, `host` and `seconds` are for the log.
    """

    position: int
    kind: str
    signature: str = ""
    reason: str = ""
    run: str = ""
    host: str = ""
    seconds: float | None = None


@dataclass
class CommitCounts:
    """The runs of one commit: passes, failures as at the bad end, failures of another kind, blocked ones."""

    passes: int = 0
    fails: int = 0
    others: int = 0
    blocked: int = 0
    missing: bool = False

    @property
    def valid(self) -> int:
        """Runs that say something about the failure that is looked for."""
        return self.passes + self.fails

    @property
    def skips(self) -> int:
        return self.others + self.blocked


@dataclass(frozen=True)
class RunCounts:
    """All runs per position, for one failure."""

    target: str
    counts: dict[int, CommitCounts]
    runs: int

    def at(self, position: int) -> CommitCounts:
        return self.counts.get(position) or CommitCounts()


def most_frequent_failure(bad: int, observations: Sequence[Observation]) -> str:
    """The signature seen most often at the bad end, of equals the first; "" where nothing failed there yet."""
    signatures = Counter(
        observation.signature
        for observation in observations
        if observation.position == bad and observation.kind == FAIL
    )
    return signatures.most_common(1)[0][0] if signatures else ""


def count_runs(observations: Sequence[Observation], target: str) -> RunCounts:
    """Count what was seen. A failure counts as such only with the signature `target`."""
    run_counts = RunCounts(target, {}, len(observations))
    for observation in observations:
        counts = run_counts.counts.setdefault(observation.position, CommitCounts())
        if observation.kind == PASS:
            counts.passes += 1
        elif observation.kind == FAIL and observation.signature == target:
            counts.fails += 1
        elif observation.kind == FAIL:
            counts.others += 1
        elif observation.kind == BLOCKED:
            counts.blocked += 1
        else:
            counts.missing = True
    return run_counts
