"""Which two runs are meant, what their repository says between their commits, and their comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import find_repository
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.features.difference.compare import compare_runs
from ci_tasks.features.difference.read_run import of_file, of_run
from ci_tasks.features.difference.result import SUBMODULE, RunDifference, RunSide
from ci_tasks.results import store
from ci_tasks.results.index import runs_of_row
from ci_tasks.results.load import find_one, load_record

LAST_PASSED = "last-passed"
_MOST_COMMITS = 20
_MOST_PASSED = 50  # of a row, among which the last one before the run is searched for


@dataclass(frozen=True)
class SideBySide:
    """Both sides with what was found, for a report that draws them."""

    old: RunSide
    new: RunSide
    difference: RunDifference


def diff_runs(first: str, second: str | None, repository: str | None = None) -> SideBySide:
    """Two runs side by side, as `two_sides` names them. Raises UsageError, Blocked."""
    return _compared(*_completed(*two_sides(first, second), repository))


def two_sides(first: str, second: str | None) -> tuple[RunSide, RunSide]:
    """`first` is the earlier state if both are named. Alone it is the one that is asked about, and compared with the
    last run of its row that passed before it. Raises UsageError, Blocked."""
    if second is None:
        first, second = LAST_PASSED, first
    if first == second == LAST_PASSED:
        raise UsageError(f"{LAST_PASSED} is the last run that passed of another run's row", hint="name that run")
    if second == LAST_PASSED:
        old = one_side(first)
        return old, _last_passed(old)
    new = one_side(second)
    return _last_passed(new) if first == LAST_PASSED else one_side(first), new


def one_side(name: str) -> RunSide:
    """Raises UsageError, Blocked."""
    if os.path.isfile(name):
        return of_file(name)
    _, run = find_one(name)
    return of_run(run)


def _last_passed(run: RunSide) -> RunSide:
    """The newest run of its row that passed and began before it, on any host."""
    if not run.label:
        raise UsageError(
            f"{run.id} does not say which row it is of", hint="name the other run: `ci-tasks runs` lists them"
        )
    for directory in runs_of_row(run.label, run.row, _MOST_PASSED):
        record = load_record(directory)
        if record.id != run.id and (record.started_at or "") < (run.started_at or "~"):
            return of_run(directory)
    raise UsageError(
        f"no run of {run.row} that passed before {run.id} is kept in {store.home() / 'runs'}",
        hint="name the other run, its record.json, or a log of CI",
    )


def _completed(old: RunSide, new: RunSide, repository: str | None) -> tuple[RunSide, RunSide]:
    """A CI log does not say its row, nor where its commits are: those of the other side."""
    place = repository or new.repository or old.repository
    sides = [
        replace(
            side,
            label=side.label or other.label,
            row=side.row or other.row,
            repository=place,
        )
        for side, other in ((old, new), (new, old))
    ]
    return sides[0], sides[1]


def _compared(old: RunSide, new: RunSide) -> SideBySide:
    notes: list[str] = []
    if (old.label, old.row) != (new.label, new.row):
        notes.append(f"two rows: {old.label} {old.row}, and {new.label} {new.row}")
    commits: list[str] = []
    files = [*new.dirty, *old.dirty]
    if _commits_differ(old, new):
        try:
            between = _between(old, new)
        except (CheckoutError, OSError) as error:
            between = None
            notes.append(f"the commits between the two were not read: {error}")
        if between is not None:
            commits, files = between.commits, [*files, *between.files]
            old = replace(old, inputs={**old.inputs, **between.old_submodules})
            new = replace(new, inputs={**new.inputs, **between.new_submodules})
    return SideBySide(old, new, compare_runs(old, new, changed_files=files, commits=commits, notes=notes))


def _commits_differ(old: RunSide, new: RunSide) -> bool:
    return bool(old.head and new.head and old.repository) and old.head != new.head


@dataclass(frozen=True)
class _Between:
    commits: list[str]
    files: list[str]
    old_submodules: Mapping[str, Mapping[str, str]]
    new_submodules: Mapping[str, Mapping[str, str]]


def _between(old: RunSide, new: RunSide) -> _Between | None:
    """What the repository has between the two commits; None where there is none. Raises CheckoutError."""
    repository = find_repository(Path(old.repository))
    if repository is None:
        return None
    git = repository.git
    span = f"{old.head}..{new.head}"
    commits = git.text("log", "--format=%h %s", f"-n{_MOST_COMMITS}", span).splitlines()
    raw = git.null_separated("diff", "--raw", "--no-renames", "--abbrev=40", "-z", old.head, new.head)
    changes = list(zip(raw[::2], raw[1::2], strict=False))
    links = [(path, info.split()) for info, path in changes if "160000" in info.split()[0][1:] + info.split()[1]]
    return _Between(
        commits,
        [path for _, path in changes],
        {f"{SUBMODULE}{path}": {"commit": fields[2][:12]} for path, fields in links},
        {f"{SUBMODULE}{path}": {"commit": fields[3][:12]} for path, fields in links},
    )
