"""A bisection as text: its head, a line for each run, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.checkout.commits import Commit, CommitHistory
from ci_tasks.errors import printable
from ci_tasks.features.failures.repeats.report import runs as runs
from ci_tasks.report.timeline import duration

_SHORT = 12
_HOST = 8
_MANY = 12  # commits that a range lists


@dataclass(frozen=True)
class FailureCounts:
    """Runs in numbers: failures and runs of the culprit and all that contain it, and of the others."""

    fails_from: int
    runs_from: int
    fails_before: int
    runs_before: int


@dataclass(frozen=True)
class Effort:
    """What it took. `seconds` are those of the runs together."""

    runs: int
    commits: int
    seconds: float


def head(label: str, row: str, history: CommitHistory, hosts: Sequence[str], earlier: int = 0) -> list[str]:
    """What is going to happen. `earlier` is how many runs up to the good end are on record."""
    count, good, bad = len(history.commits), history.good.sha[:_SHORT], history.bad.sha[:_SHORT]
    many = "1 commit" if count == 1 else f"{count} commits"
    return [
        f"bisect: {many} after {good} (good) up to {bad} (bad)",
        f"row {printable(row)} of label {printable(label)}, on {', '.join(hosts)}",
        *(
            [f"{runs(earlier)} of commits up to the good end on record tell how often it fails by chance"]
            if earlier
            else []
        ),
    ]


def observation(number: int, commit: Commit, host: str, mark: str, run: str, seconds: float | None) -> str:
    """One run: which commit, where, what that says and why."""
    took = f", {seconds:.0f} s" if seconds is not None else ""
    where = f" [{run}{took}]" if run else ""
    return f"{number:>3}  {commit.sha[:_SHORT]}  {host:<{_HOST}}  {_line(mark)}{where}"


def target(signature: str, fails: int, of: int, to_go: int) -> str:
    """What the bad end's failure is, and how many more runs it may take."""
    return f"looking for: {_line(signature)} ({fails} of {runs(of)} of the bad end); some {runs(to_go)} to go"


def culprit(commit: Commit, probability: float, counts: FailureCounts, repository: str, effort: Effort) -> list[str]:
    """The commit that was found."""
    before = f"{counts.fails_before} of {counts.runs_before}"
    return [
        "",
        f"the culprit: {commit.sha}",
        f"    {_line(commit.subject)}",
        f"    {_line(commit.author)}, {commit.date}",
        f"probability {_share(probability)}: the row fails in {counts.fails_from} of {runs(counts.runs_from)} "
        f"from it on, in {before} before it",
        f"see it: git -C {shlex.quote(printable(repository))} show {commit.sha[:_SHORT]}",
        _effort(effort),
    ]


def unclear(left: Sequence[tuple[Commit, float]], distinguishable: bool, effort: Effort) -> list[str]:
    """Several commits that could be it."""
    why = (
        f"not clear after {runs(effort.runs)}; the most probable are:"
        if distinguishable
        else "only commits that cannot be tested are left; the culprit is one of:"
    )
    shown = [f"    {c.sha[:_SHORT]}  {_share(p):>4}  {_line(c.subject)}" for c, p in left[:_MANY]]
    more = [f"    and {len(left) - _MANY} more"] if len(left) > _MANY else []
    return ["", why, *shown, *more, _effort(effort)]


def _effort(effort: Effort) -> str:
    many = "1 commit" if effort.commits == 1 else f"{effort.commits} commits"
    return f"{runs(effort.runs)} of {many}, {duration(effort.seconds)} of tests"


def _share(probability: float) -> str:
    percent = min(99, int(probability * 100))  # nothing that may be flaky is ever wholly certain
    return f"{percent} %"


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
