"""How likely line and verdict are right: what that depends on, as named numbers for weights.json."""

from __future__ import annotations

import math

from ci_tasks.features.failures.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, PYTEST, Candidate
from ci_tasks.features.failures.triage.features import Features, rank_of
from ci_tasks.features.failures.triage.ranking import Ranking
from ci_tasks.logs.causes import CODE, UNKNOWN, group_of
from ci_tasks.records import FAILED

_LEAST = 1e-4
_RIVAL = 0.05  # share of a second that counts
# Features of the chosen line, and of "nothing failed", that say how sure it is.
_OF_CHOICE = (
    "first root",
    "a root stands elsewhere",
    "first traceback",
    "last traceback",
    "the only traceback",
    "raised last",
    "quoted later",
    "quotes an earlier one",
    "a success came later",
    "passed on later",
    "plain beside a traceback",
    "survived",
    "long",
)
_OF_NOTHING = (
    "no candidate",
    "no traceback",
    "says that it succeeded",
    "succeeded after all",
    "nothing raised or loud",
)


def blamed_group(candidate: Candidate, cause: str, verdict: str) -> str:
    """The group of the cause; that of the code for an exception of no known cause that is not the environment's."""
    is_code = cause == UNKNOWN and verdict == FAILED and candidate.kind in (EXCEPTION_END, EXCEPTION_LINE, PYTEST)
    return CODE if is_code else group_of(cause)


def confidence_features(ranking: Ranking, blocked: bool, ends: bool, agrees: bool) -> Features:
    """What speaks for line and verdict. `blocked` says that the environment is blamed, `ends` that the exit code is
    known, `agrees` that the search upwards found the same line."""
    shares = [share for share, _ in ranking.order[:2]] + [0.0, 0.0]
    best, second = max(shares[0], _LEAST), max(shares[1], _LEAST)
    if not ranking.failed:
        passed: Features = {"nothing failed": 1, "nothing failed, log-odds": _log_odds(ranking.nothing)}
        return passed | {f"nothing failed, {name}": ranking.features.get(name, 0.0) for name in _OF_NOTHING}
    candidate = ranking.order[0][1]
    return {
        "always": 1,
        "best, log-odds": _log_odds(best),
        "best against second": min(math.log(best / second), 6),
        "nothing failed against best": max(-6.0, math.log(max(ranking.nothing, _LEAST) / best)),
        "score of the best": min(max(ranking.best, -4.0), 8.0) / 4,
        "blocked": blocked,
        "the search upwards agrees": agrees,
        "exit code known": ends,
        "candidates": math.log1p(len(ranking.order)),
        f"kind {candidate.kind}": 1,
        f"rank {rank_of(candidate)}": 1,
        "no rule of its own": candidate.rule is None,
        "second says another thing": _differ(ranking),
        **{name: ranking.features.get(name, 0.0) for name in _OF_CHOICE},
    }


def _differ(ranking: Ranking) -> bool:
    """Whether the second is of another origin than the first: neither of its chain nor of its rule."""
    if len(ranking.order) < 2 or ranking.order[1][0] < _RIVAL:
        return False
    first, second = ranking.order[0][1], ranking.order[1][1]
    return not (first.chain and first.chain == second.chain) and (first.rule is None or first.rule is not second.rule)


def _log_odds(share: float) -> float:
    share = min(max(share, _LEAST), 1 - _LEAST)
    return math.log(share / (1 - share))
