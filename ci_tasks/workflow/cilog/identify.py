"""Which row of a workflow a log is of: by its job's name, by the scripts that the runner echoed, by the environment.

Evidence only narrows. Of several rows that fit equally well none is chosen, and evidence that fits none of those left
is passed over: the first steps of a log are the runner's own, later ones may be a program's words.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ci_tasks.errors import printable
from ci_tasks.model import Row
from ci_tasks.workflow.cilog.candidates import Candidate, cut
from ci_tasks.workflow.cilog.recovered import CiStep, Recovered

_MASK = "***"
_NEAR = 10
_SHORTEST_STEM = 40  # of a cut name; less says too little


@dataclass(frozen=True)
class Identified:
    """`row` is None where no row, or more than one, fits; `why` says what was compared, `near` are the rows that came
    closest, in the workflow's order."""

    row: Row | None
    why: str
    near: tuple[Row, ...] = ()


def identify(recovered: Recovered, candidates: Sequence[Candidate]) -> Identified:
    """The row that the log is of. Raises nothing."""
    name = recovered.job_name
    named = [one for one in candidates if any(_same_name(name, own) for own in one.names)]
    of_job = named or _of_same_job(name, candidates)
    left, compared = _narrow(recovered, of_job or list(candidates))
    reasons = [f"its job is called {name!r}" if named else f"no row's job is called {name!r}"] if name else []
    why = "; ".join([*reasons, *compared.words]) or "the log has neither a job's name nor a script that a row has"
    told = bool(named) or compared.told
    # Scripts of two jobs may be the same, so one that has a name and another job's script is not that job.
    if len(left) == 1 and told and (of_job or not name):
        return Identified(left[0].row, why)
    near = left if told or of_job else _nearest(name, candidates)
    several = f"; {len(left)} rows fit" if told and len(left) > 1 else ""
    return Identified(None, why + several, tuple(one.row for one in near[:_NEAR]))


@dataclass
class _Compared:
    """What scripts and environment said. `told`: something in them belongs to the rows left and to no others, or is
    word for word what they run."""

    words: list[str]
    told: bool = False


def _narrow(recovered: Recovered, pool: list[Candidate]) -> tuple[list[Candidate], _Compared]:
    compared = _Compared([])
    unlike: list[str] = []
    for step in recovered.scripts:
        fits = _fitting(step, pool)
        if not fits:
            unlike.append(step.name)
            continue
        if len(fits.rows) < len(pool) or fits.whole:
            compared.told = True
            compared.words.append(f"{fits.how} of step {step.name!r}")
        pool = fits.rows
    env = recovered.scripts[0].env if recovered.scripts else {}
    for key in sorted({key for one in pool for key in one.env if key in env}):
        fits_env = [one for one in pool if key in one.env and _agrees(env[key], printable(one.env[key]))]
        if fits_env and len(fits_env) < len(pool):
            compared.told, pool = True, fits_env
            compared.words.append(f"its {key} is {env[key]!r}")
    if unlike:
        compared.words.append(f"the script of step {unlike[0]!r} is no row's, so the workflow may be another revision")
    return pool, compared


@dataclass(frozen=True)
class _Fits:
    rows: list[Candidate]
    how: str
    whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.rows)


def _fitting(step: CiStep, pool: list[Candidate]) -> _Fits:
    """Those of `pool` that have the step's script: word for word, else in every line in which rows differ, else by the
    test and arguments that it names."""
    lines = _lines(step.script)
    if not lines:
        return _Fits([], "")
    whole = _with_script(pool, lambda script: _alike(lines, script))
    if whole:
        return _Fits(whole, "the script", whole=True)
    telling = _telling(pool, len(lines))
    if telling:
        found = _with_script(pool, lambda script: _alike_in(lines, script, telling))
        if found:
            return _Fits(found, "the lines that differ from row to row in the script")
    return _Fits(_mentioned(step.script, pool), "the test in the script")


def _with_script(pool: list[Candidate], fits: Callable[[list[str]], bool]) -> list[Candidate]:
    return [one for one in pool if any(fits(_lines(script)) for script in one.scripts if script)]


def _alike(lines: list[str], script: list[str]) -> bool:
    return len(lines) == len(script) and all(map(_agrees, lines, script))


def _telling(pool: list[Candidate], count: int) -> list[int]:
    """The numbers of the lines in which scripts of `count` lines differ."""
    scripts = [lines for one in pool for lines in map(_lines, one.scripts) if len(lines) == count]
    return [at for at in range(count) if len({lines[at] for lines in scripts}) > 1]


def _alike_in(lines: list[str], script: list[str], telling: list[int]) -> bool:
    if len(lines) != len(script):
        return False
    same = sum(map(_agrees, lines, script))
    return 2 * same >= len(lines) and all(_agrees(lines[at], script[at]) for at in telling)


def _mentioned(script: str, pool: list[Candidate]) -> list[Candidate]:
    """Rows whose test the script names; of those, the ones of which it has the most arguments."""
    named = [one for one in pool if one.row.test and _names(script, one.row.test) and one.row.args in script]
    most = max((len(one.row.args) for one in named), default=0)
    return [one for one in named if len(one.row.args) == most]


def _names(script: str, test: str) -> bool:
    """Whether the path stands in the script as a word, from the root or from tests/."""
    padded = "".join(char if char.isalnum() or char in "_-./" else " " for char in script)
    words = set(padded.split())
    return test in words or test.removeprefix("tests/") in words


def _agrees(shown: str, wanted: str) -> bool:
    """Whether what CI shows may be `wanted`: the runner puts *** where a secret stands, whatever it stands in."""
    if _MASK not in shown:
        return shown == wanted
    pieces = shown.split(_MASK)
    first, last = pieces[0], pieces[-1]
    if not (wanted.startswith(first) and wanted.endswith(last)) or len(wanted) < len(first) + len(last):
        return False
    at, end = len(first), len(wanted) - len(last)
    for piece in pieces[1:-1]:
        found = wanted.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _lines(script: str) -> list[str]:
    return [printable(line.rstrip()) for line in script.rstrip().split("\n")] if script.strip() else []


def _same_name(shown: str, own: str) -> bool:
    """Whether CI shows the job's `own` name as `shown`: cut if it is long, behind its caller's in a called workflow."""
    if not shown:
        return False
    for name in (shown, shown.rpartition(" / ")[2]):
        stem = name.removesuffix("...").removesuffix("…")
        if name in (own, cut(own)) or (stem != name and len(stem) >= _SHORTEST_STEM and own.startswith(stem)):
            return True
    return False


def _of_same_job(name: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The rows of the job that a name begins with."""
    job = name.rpartition(" / ")[2].split(" (")[0]
    return [one for one in candidates if job in (one.row.job, *_bare(one.names))]


def _bare(names: Iterable[str]) -> list[str]:
    return [name.split(" (")[0] for name in names]


def _nearest(name: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates whose job is called most like `name`."""
    every = {own: one for one in candidates for own in one.names}
    close = difflib.get_close_matches(name, every, n=_NEAR, cutoff=0.6) if name else []
    return [one for one in candidates if any(own in close for own in one.names)]
