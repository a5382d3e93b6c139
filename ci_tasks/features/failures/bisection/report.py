"""A bisection as text: its head, a line for each run, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, one_line, printable
from ci_tasks.features.failures.bisection.axis import COMMIT, OVERLAY, SUBMODULE, Point, SearchRange
from ci_tasks.report.table import duration

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
    points: int
    seconds: float
    what: str = "commit"


def head(label: str, row: str, search: SearchRange, hosts: Sequence[str], earlier: int = 0) -> list[str]:
    """What is going to happen. `earlier` is how many runs up to the good end are on record."""
    good, bad = search.points[0], search.points[-1]
    many = counted(len(search.points) - 1, search.noun)
    where = f"row {printable(row)} of label {printable(label)}, on {', '.join(hosts)}"
    fixed = "" if search.axis == COMMIT else f", with commit {bad.sha[:_SHORT]}"
    many += f" of {search.axis.replace(':', ' ')}" if search.axis.startswith((OVERLAY, SUBMODULE)) else ""
    return [
        f"bisect: {many} after {good.short} (good) up to {bad.short} (bad){fixed}",
        where,
        *(
            [f"{counted(earlier, 'run')} of commits up to the good end on record tell how often it fails by chance"]
            if earlier
            else []
        ),
    ]


def cost(steady_runs: int, seconds: float | None, hosts: int) -> str:
    """What it may cost, before it begins. `seconds` is what a run of this row took lately, if one is known."""
    each = f", {duration(seconds)} each lately" if seconds is not None else ", no earlier run says how long each takes"
    total = f": {duration(seconds * steady_runs / hosts)} on {counted(hosts, 'host')}" if seconds is not None else ""
    return f"some {counted(steady_runs, 'run')} if it always fails, more if it is flaky{each}{total}"


def observation(number: int, point: Point, host: str, mark: str, run: str, seconds: float | None) -> str:
    """One run: of what, where, what that says and why."""
    took = f", {seconds:.0f} s" if seconds is not None else ""
    where = f" [{run}{took}]" if run else ""
    return f"{number:>3}  {point.short}  {host:<{_HOST}}  {one_line(mark)}{where}"


def passes_at_bad(most: int) -> str:
    """Why a row that passes where it should fail runs there again."""
    return f"it passes at the bad end: it runs there up to {most} times, since the failure may be rare (^C ends that)"


def target(signature: str, fails: int, of: int, to_go: int) -> str:
    """What the bad end's failure is, and how many more runs it may take."""
    seen = f"{fails} of {counted(of, 'run')} of the bad end"
    return f"looking for: {one_line(signature)} ({seen}); some {counted(to_go, 'run')} to go"


def culprit(point: Point, probability: float, counts: FailureCounts, see: str, effort: Effort) -> list[str]:
    """The commit or image that was found; `see` is a command that shows it."""
    before = f"{counts.fails_before} of {counts.runs_before}"
    commit = point.commit
    about = [f"    {one_line(commit.subject)}", f"    {one_line(commit.author)}, {commit.date}"]
    return [
        "",
        f"the culprit: {printable(point.key)}",
        *([] if point.image else about),
        f"probability {_share(probability)}: the row fails in {counts.fails_from} of "
        f"{counted(counts.runs_from, 'run')} from it on, in {before} before it",
        f"see it: {see}",
        _effort(effort),
    ]


def see_commit(repository: str, point: Point) -> str:
    """The command that shows what a commit changed."""
    return f"git -C {shlex.quote(printable(repository))} show {point.short}"


def unclear(left: Sequence[tuple[Point, float]], distinguishable: bool, effort: Effort) -> list[str]:
    """Several commits that could be it."""
    why = (
        f"not clear after {counted(effort.runs, 'run')}; the most probable are:"
        if distinguishable
        else f"only {effort.what}s that cannot be tested are left; the culprit is one of:"
    )
    shown = [f"    {point.short}  {_share(p):>4}  {one_line(point.subject)}" for point, p in left[:_MANY]]
    more = [f"    and {len(left) - _MANY} more"] if len(left) > _MANY else []
    return ["", why, *shown, *more, _effort(effort)]


def _effort(effort: Effort) -> str:
    many = counted(effort.points, effort.what)
    return f"{counted(effort.runs, 'run')} of {many}, {duration(effort.seconds)} of tests"


def _share(probability: float) -> str:
    percent = min(99, int(probability * 100))  # nothing that may be flaky is ever wholly certain
    return f"{percent} %"
