"""What a CI job's log tells of the job, as a frozen record. What it does not tell is empty, and listed in `missing`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass

# How a step ended, where the log says so.
FAILURE, CANCELLED, TIMED_OUT, LOST = "failure", "cancelled", "timed out", "runner lost"
SUCCESS = "success"


@dataclass(frozen=True)
class RecoveredStep:
    """A step as the runner announces it, secrets shown as `***`.

    `name` is gh's, else GitHub's default ("Run " and the script's first line); `line` the 1-based line of the log where
    it begins; `uses` the action, or "" for a script. `masked` are the variables with a secret in them; `minutes` is the
    limit that it ran into. `outcome` is "" where the
    log does not say that the step ended badly; `error` is the last error that the runner showed.
    """

    name: str
    line: int
    uses: str = ""
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[str, ...] = ()
    outcome: str = ""
    exit_code: int | None = None
    minutes: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Head:
    """A commit that git says HEAD is at; of a merge with its parents."""

    commit: str
    merge_head: str = ""
    merge_base: str = ""


@dataclass(frozen=True)
class RecoveredJob:
    """Everything that was recovered; all text is safe for a terminal. "" and None mean: not in the log.

    `commit` has 40 digits, or fewer where the log shows no more; of a pull request it is the merge commit, and
    `merge_head` and `merge_base` are its parents. `image` is as CI names it, `digest` is "sha256:…". `workspace` is
    where CI checked out. `started` and `ended` are in seconds since the epoch. `conclusion` is success, failure,
    cancelled or "". `heads` are the commits of `HEAD is now at` outside of a checkout step, where no such step names
    the commit: the code under test may be one of them, or none. `missing` has one sentence for each fact that is not in
    the log: what, and what that means.
    """

    repository: str = ""
    job_name: str = ""
    workflow: str = ""
    runner_name: str = ""
    commit: str = ""
    ref: str = ""
    pull_request: int | None = None
    merge_head: str = ""
    merge_base: str = ""
    workspace: str = ""
    image: str = ""
    digest: str = ""
    steps: tuple[RecoveredStep, ...] = ()
    failed_step: str = ""
    exit_code: int | None = None
    conclusion: str = ""
    started: float | None = None
    ended: float | None = None
    gpu_models: tuple[str, ...] = ()
    driver: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    heads: tuple[Head, ...] = ()

    @property
    def scripts(self) -> tuple[RecoveredStep, ...]:
        return tuple(step for step in self.steps if not step.uses)
