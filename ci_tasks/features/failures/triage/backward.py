"""The reason of a failure as a person looks for it: upwards from the first process that died.

It knows no weights. Where it names the same line as the learned ranking, that line was right in 94 to 98 of 100 logs.
"""

from __future__ import annotations

from ci_tasks.features.failures.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, LAST, PYTEST, Candidate
from ci_tasks.features.failures.triage.features import CandidateList, rank_of
from ci_tasks.features.failures.triage.rules import WRAPPER

_NEAR = 40  # lines above the death in which the first error counts
_WARNING = ("warning", "warn", "w", "info", "debug", "notice", "i", "d")


def backward(log: CandidateList) -> Candidate | None:
    """The first failure that pytest reports; else the last exception that passes on nobody else's, of a chain the first
    link; else the first error right above the end, else the last."""
    told = [one for one in log.candidates if one.kind != LAST and not one.ignored and not one.survived]
    if reports := [one for one in told if one.kind == PYTEST]:
        return reports[0]
    raised = [one for one in told if one.kind in (EXCEPTION_END, EXCEPTION_LINE) and rank_of(one) != WRAPPER]
    ends = [one for one in raised if one.kind == EXCEPTION_END] or raised
    if ends:
        return next(one for one in ends if one is ends[-1] or (one.chain and one.chain == ends[-1].chain))
    errors = [one for one in told if one.line.level not in _WARNING and rank_of(one) != WRAPPER]
    near = [one for one in errors if log.lines - one.last_at <= _NEAR]
    last = [one for one in log.candidates if one.kind == LAST][-1:]
    return next(iter(near or errors[-1:] or last), None)
