"""What runs of commits have said, counted per commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass

PASS, FAIL, BLOCKED, MISSING = "pass", "fail", "blocked", "missing"
BEFORE_GOOD = -1  # the position of all that is older than the good end


@dataclass(frozen=True)
class Observation:
    """One run of the commit at `position`.

    `kind` is PASS, FAIL (with its `signature`, and `failure_kind` as far as triage knows it), BLOCKED (the environment
    could not run it) or MISSING (the row does not exist at that commit). `reason` is the run's own line; `run`, `host`
    and `seconds` are for the log.
    """

    position: int
    kind: str
    signature: str = ""
    reason: str = ""
    run: str = ""
    host: str = ""
    seconds: float | None = None
    failure_kind: str = ""


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
    """All runs per position, for one failure. `at_good` and `before_good` are failures and passes of earlier runs of
    the good end and of commits before it, which say how often the failure happens by chance."""

    target: str
    counts: dict[int, CommitCounts]
    runs: int
    at_good: tuple[int, int] = (0, 0)
    before_good: tuple[int, int] = (0, 0)

    def at(self, position: int) -> CommitCounts:
        return self.counts.get(position) or CommitCounts()


def is_failure(observation: Observation, target: str) -> bool:
    """Whether it failed as `target` says, which is a signature or a kind of failure."""
    return observation.kind == FAIL and bool(target) and target in (observation.signature, observation.failure_kind)


def most_frequent_failure(bad: int, observations: Sequence[Observation]) -> str:
    """The signature seen most often at the bad end, of equals the first; "" where nothing failed there yet. Where most
    failures of its kind have other evidence, it varies from run to run, and the kind is what they share."""
    failed = [observation for observation in observations if observation.position == bad and observation.kind == FAIL]
    if not failed:
        return ""
    (signature, count), *_ = Counter(observation.signature for observation in failed).most_common(1)
    kind = next(observation.failure_kind for observation in failed if observation.signature == signature)
    alike = sum(observation.failure_kind == kind for observation in failed)
    return kind if kind and 2 * count < alike else signature


def count_runs(observations: Sequence[Observation], target: str, earlier: Sequence[Observation] = ()) -> RunCounts:
    """Count what was seen. A failure counts as such only as `target`. `earlier` are runs of the good
    end (position 0) and of commits before it (BEFORE_GOOD)."""

    def tally(position: int) -> tuple[int, int]:
        runs = [observation for observation in earlier if observation.position == position]
        failed = sum(is_failure(observation, target) for observation in runs)
        return failed, sum(observation.kind == PASS for observation in runs)

    run_counts = RunCounts(target, {}, len(observations), tally(0), tally(BEFORE_GOOD))
    for observation in observations:
        counts = run_counts.counts.setdefault(observation.position, CommitCounts())
        if observation.kind == PASS:
            counts.passes += 1
        elif is_failure(observation, target):
            counts.fails += 1
        elif observation.kind == FAIL:
            counts.others += 1
        elif observation.kind == BLOCKED:
            counts.blocked += 1
        else:
            counts.missing = True
    return run_counts
