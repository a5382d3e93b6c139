"""Which row of a workflow a log is of: by its job's name, by the scripts that the runner echoed, by the environment.

Evidence only narrows. Of several rows that fit equally well none is chosen, and evidence that fits none of those left
is passed over: the first steps of a log are the runner's own, later ones may be a program's output.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import printable
from ci_tasks.features.ci_logs.parse.recovered_job import RecoveredJob, RecoveredStep
from ci_tasks.features.ci_logs.parse.row_candidates import RowCandidate, shortened_name
from ci_tasks.workflow.model import Row

_MASK = "***"
_MAX_NEAREST = 10
_SHORTEST_STEM = 40  # of a cut name; less says too little


@dataclass(frozen=True)
class RowIdentity:
    """`row` is None where no row, or more than one, fits; `why` says what was compared; `nearest` are the closest rows,
    in the workflow's order."""

    row: Row | None
    why: str
    nearest: tuple[Row, ...] = ()


def identify_row(recovered: RecoveredJob, candidates: Sequence[RowCandidate]) -> RowIdentity:
    name = recovered.job_name
    named = [candidate for candidate in candidates if any(_same_name(name, own) for own in candidate.names)]
    of_same_job = named or _of_same_job(name, candidates)
    left, evidence = _narrow(recovered, of_same_job or list(candidates))
    name_reasons = [f"its job is called {name!r}" if named else f"no row's job is called {name!r}"] if name else []
    why = (
        "; ".join([*name_reasons, *evidence.reasons]) or "the log has neither a job's name nor a script that a row has"
    )
    is_decisive = bool(named) or evidence.is_decisive
    # Scripts of two jobs may be the same, so one that has a name and another job's script is not that job.
    if len(left) == 1 and is_decisive and (of_same_job or not name):
        return RowIdentity(left[0].row, why)
    nearest = left if is_decisive or of_same_job else _nearest(name, candidates)
    several = f"; {len(left)} rows fit" if is_decisive and len(left) > 1 else ""
    return RowIdentity(None, why + several, tuple(candidate.row for candidate in nearest[:_MAX_NEAREST]))


@dataclass
class _Evidence:
    """What scripts and environment show. `is_decisive`: something in them belongs to the rows left and to no others, or
    is word for word what they run."""

    reasons: list[str]
    is_decisive: bool = False


def _narrow(recovered: RecoveredJob, pool: list[RowCandidate]) -> tuple[list[RowCandidate], _Evidence]:
    evidence = _Evidence([])
    unlike: list[str] = []
    for step in recovered.scripts:
        fits = _fitting(step, pool)
        if not fits:
            unlike.append(step.name)
            continue
        if len(fits.rows) < len(pool) or fits.whole:
            evidence.is_decisive = True
            evidence.reasons.append(f"{fits.description} of step {step.name!r}")
        pool = fits.rows
    env = recovered.scripts[0].env if recovered.scripts else {}
    for key in sorted({key for candidate in pool for key in candidate.env if key in env}):
        fits_env = [
            candidate for candidate in pool if key in candidate.env and _agrees(env[key], printable(candidate.env[key]))
        ]
        if fits_env and len(fits_env) < len(pool):
            evidence.is_decisive, pool = True, fits_env
            evidence.reasons.append(f"its {key} is {env[key]!r}")
    if unlike:
        evidence.reasons.append(
            f"the script of step {unlike[0]!r} is no row's, so the workflow may be another revision"
        )
    return pool, evidence


@dataclass(frozen=True)
class _Fits:
    rows: list[RowCandidate]
    description: str
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.rows)


def _fitting(step: RecoveredStep, pool: list[RowCandidate]) -> _Fits:
    """Those of `pool` that have the step's script: word for word, else in every line in which rows differ, else by the
    test and arguments that it names."""
    lines = _lines(step.script)
    if not lines:
        return _Fits([], "")
    whole = _with_script(pool, lambda script: _agree(lines, script))
    if whole:
        return _Fits(whole, "the script", whole=True)
    differing = _differing_lines(pool, len(lines))
    if differing:
        matches = _with_script(pool, lambda script: _agree_in(lines, script, differing))
        if matches:
            return _Fits(matches, "the lines that differ from row to row in the script")
    return _Fits(_with_named_test(step.script, pool), "the test in the script")


def _with_script(pool: list[RowCandidate], fits: Callable[[list[str]], bool]) -> list[RowCandidate]:
    return [candidate for candidate in pool if any(fits(_lines(script)) for script in candidate.scripts if script)]


def _agree(lines: list[str], script: list[str]) -> bool:
    return len(lines) == len(script) and all(map(_agrees, lines, script))


def _differing_lines(pool: list[RowCandidate], count: int) -> list[int]:
    """The numbers of the lines in which scripts of `count` lines differ."""
    scripts = [lines for candidate in pool for lines in map(_lines, candidate.scripts) if len(lines) == count]
    return [at for at in range(count) if len({lines[at] for lines in scripts}) > 1]


def _agree_in(lines: list[str], script: list[str], differing: list[int]) -> bool:
    if len(lines) != len(script):
        return False
    same = sum(map(_agrees, lines, script))
    return 2 * same >= len(lines) and all(_agrees(lines[at], script[at]) for at in differing)


def _with_named_test(script: str, pool: list[RowCandidate]) -> list[RowCandidate]:
    """Rows whose test the script names; of those, the ones of which it has the most arguments."""
    named = [
        candidate
        for candidate in pool
        if candidate.row.test and _names_test(script, candidate.row.test) and candidate.row.args in script
    ]
    most = max((len(candidate.row.args) for candidate in named), default=0)
    return [candidate for candidate in named if len(candidate.row.args) == most]


def _names_test(script: str, test: str) -> bool:
    """Whether the path stands in the script as a word, from the root or from tests/."""
    padded = "".join(char if char.isalnum() or char in "_-./" else " " for char in script)
    arguments = set(padded.split())
    return test in arguments or test.removeprefix("tests/") in arguments


def _agrees(shown: str, expected: str) -> bool:
    """Whether what CI shows may be `expected`: the runner puts *** where a secret stands, whatever it stands in."""
    if _MASK not in shown:
        return shown == expected
    pieces = shown.split(_MASK)
    first, last = pieces[0], pieces[-1]
    if not (expected.startswith(first) and expected.endswith(last)) or len(expected) < len(first) + len(last):
        return False
    at, end = len(first), len(expected) - len(last)
    for piece in pieces[1:-1]:
        position = expected.find(piece, at, end)
        if position < 0:
            return False
        at = position + len(piece)
    return True


def _lines(script: str) -> list[str]:
    return [printable(line.rstrip()) for line in script.rstrip().split("\n")] if script.strip() else []


def _same_name(shown: str, own: str) -> bool:
    """Whether CI shows the job's `own` name as `shown`: cut if it is long, behind its caller's in a called workflow."""
    if not shown:
        return False
    for name in (shown, shown.rpartition(" / ")[2]):
        stem = name.removesuffix("...").removesuffix("…")
        if name in (own, shortened_name(own)) or (
            stem != name and len(stem) >= _SHORTEST_STEM and own.startswith(stem)
        ):
            return True
    return False


def _of_same_job(name: str, candidates: Sequence[RowCandidate]) -> list[RowCandidate]:
    job = name.rpartition(" / ")[2].split(" (")[0]
    return [candidate for candidate in candidates if job in (candidate.row.job, *_bare(candidate.names))]


def _bare(names: Iterable[str]) -> list[str]:
    return [name.split(" (")[0] for name in names]


def _nearest(name: str, candidates: Sequence[RowCandidate]) -> list[RowCandidate]:
    """The candidates whose job is called most like `name`."""
    by_name = {own: candidate for candidate in candidates for own in candidate.names}
    close = difflib.get_close_matches(name, by_name, n=_MAX_NEAREST, cutoff=0.6) if name else []
    return [candidate for candidate in candidates if any(own in close for own in candidate.names)]
