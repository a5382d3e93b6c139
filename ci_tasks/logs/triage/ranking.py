"""Of all that may be the reason, the line that a maintainer would quote, or that nothing failed; its cause; and how
likely line and verdict are right."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.causes import CODE, UNKNOWN, group_of
from ci_tasks.logs.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, LAST, PYTEST, Candidate
from ci_tasks.logs.triage.features import CandidateList, Features, features, features_of_none, rank_of
from ci_tasks.logs.triage.rules import ROOT, WRAPPER, Rules
from ci_tasks.logs.triage.weights import Weights, probabilities, score
from ci_tasks.records import BLOCKED, CANCELLED, FAILED

_NEAR = 200  # lines
_SURELY_FAILED = 1e-6  # share of "nothing failed" where it is known that something did
_MERE_ENDS, _KILLS = ("launcher", "going-down"), ("killed-child", "killed-by-shell", "cancelled")  # rules
_HUB, _SOON = "hub", 40  # a rule; lines
_NOT_THERE = re.compile(
    r"(?i)repositor|local (?:directory|path|folder)|snapshot|offline|cached|could ?n.t (?:find|load)|not found"
)
_SUMMARY = re.compile(r"(?:FAILED|ERROR) \S+(?: [^-]*)? - (.+)")  # pytest's summary names the exception too
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
_NEAR_DEATH = 40  # lines above the death in which the first error counts
_WARNING = ("warning", "warn", "w", "info", "debug", "notice", "i", "d")


@dataclass(frozen=True)
class Ranking:
    """The candidates with their probabilities, the best first; `nothing` is the probability that nothing failed, and
    `best` the score of the first: the probabilities are shares, also of candidates that are all poor. `features` are
    those of the first, or of "nothing failed"."""

    order: list[tuple[float, Candidate]]
    nothing: float
    best: float
    features: Features

    @property
    def failed(self) -> bool:
        """That a line stands at the end, and no more, is no evidence of a failure."""
        telling = [(share, one) for share, one in self.order if not one.outlived]
        told = sum(share for share, one in telling if one.kind != LAST or one.rule is not None)
        return bool(self.order) and (self.nothing < _SURELY_FAILED or self.nothing < told)

    @property
    def tells_only_an_end(self) -> bool:
        """Whether no line tells more than that something ended or was killed."""
        told = {one.rule.name if one.rule else "" for _, one in self.order if one.kind != LAST or one.rule}
        return bool(told) and told <= {*_MERE_ENDS, *_KILLS}


def rank(log: CandidateList, weights: Weights, failed: bool) -> Ranking:
    """What may be the reason; `failed` says that something is known to have failed."""
    rows = [*features(log), features_of_none(log)]
    return ranked(log, rows, [score(weights.ranking, row) for row in rows], failed)


def ranked(log: CandidateList, rows: Sequence[Features], scores: Sequence[float], failed: bool) -> Ranking:
    """The same from features and scores, of which the last are those of "nothing failed"."""
    *shares, none = probabilities([*scores[:-1], -1e3 if failed else scores[-1]])
    pairs = sorted(zip(shares, log.candidates, strict=True), key=lambda pair: (-pair[0], pair[1].line.number))
    order = _refusal_before_consequence(_root_before_kill(_last_word_first(pairs, log)))
    order += [(0.0, candidate) for candidate in log.consequences]
    of = {id(one): row for one, row in zip(log.candidates, rows, strict=False)}
    ranking = Ranking(order, none, max(scores[:-1], default=0.0), rows[-1])
    return replace(ranking, features=of[id(order[0][1])]) if ranking.failed else ranking


def _last_word_first(pairs: list[tuple[float, Candidate]], log: CandidateList) -> list[tuple[float, Candidate]]:
    """What only notes that something failed, right below a script's own words, is no better than these."""
    said = log.last_said
    first = pairs[0][1] if pairs else None
    if said is None or first is None or first.rule is None or first.rule.name not in _MERE_ENDS:
        return pairs
    if first.line.number - said.line.number != 1:
        return pairs
    return _moved_first(said, pairs)


def _refusal_before_consequence(pairs: list[tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    """What the hub refused is missing later: that it is not there is a consequence."""
    if not pairs:
        return pairs
    first = pairs[0][1]
    if not _NOT_THERE.search(" ".join([first.text, *first.after[:2]])):
        return pairs
    refused = [
        one
        for _, one in pairs
        if one.rule is not None
        and one.rule.name == _HUB
        and not one.survived
        and 0 < first.line.number - one.last_at <= _SOON
    ]
    return _moved_first(refused[-1], pairs) if refused else pairs


def _moved_first(one: Candidate, pairs: list[tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    """In its place the share of the first."""
    return [(pairs[0][0], one), *(pair for pair in pairs if pair[1] is not one)]


def _root_before_kill(pairs: list[tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    """That a process was killed is no better than what is known to have gone wrong."""
    if not pairs or pairs[0][1].rule is None or pairs[0][1].rule.name not in _KILLS:
        return pairs
    root = next((one for _, one in pairs if one.rule is not None and one.rule.rank == ROOT and not one.ignored), None)
    if root is None or root.survived:
        return pairs
    return _moved_first(root, pairs)


def cause_of(candidate: Candidate, candidates: Sequence[Candidate], rules: Rules) -> tuple[str, str]:
    """(cause, verdict) of the chosen line; where what wraps it says more, that."""
    own = _own_cause(candidate, candidates, rules)
    for other in candidates:
        if (
            other.rule is not None
            and own[0] in other.rule.over
            and abs(other.line.number - candidate.line.number) < _NEAR
        ):
            return _of_rule(other)
    return own


def _own_cause(candidate: Candidate, candidates: Sequence[Candidate], rules: Rules) -> tuple[str, str]:
    """(cause, verdict) of the chosen line. A bare exception has the cause of its chain, then of the code that raised
    it, then of what wraps it."""
    if candidate.rule is not None and candidate.rule.verdict == CANCELLED:
        return _of_rule(candidate)
    if candidate.rule is not None and candidate.rule.cause and candidate.rule.rank == ROOT:
        return _best_of_chain(candidate, candidates)
    if (named := _SUMMARY.match(candidate.text)) and (rule := rules.of(named[1])) and rule.cause:
        return rule.cause, rule.verdict
    chain = [other for other in candidates if other.chain and other.chain == candidate.chain]
    roots = [other for other in chain if other.rule is not None and other.rule.rank == ROOT and other.rule.cause]
    if roots:
        first = min(roots, key=lambda other: other.rule.order if other.rule else 0)
        return _of_rule(first)
    wrapping = [other for other in chain if other is not candidate and other.rule is not None and other.rule.cause]
    if wrapping:
        return _of_rule(wrapping[0])
    place = rules.place(candidate.text, list(reversed(candidate.frames))[:12])
    if place is not None:
        return place.cause, place.verdict
    if candidate.rule is not None and candidate.rule.cause:
        return _of_rule(candidate)
    around = [
        other
        for other in candidates
        if other.rule is not None and other.rule.rank == WRAPPER and other.rule.cause not in ("", CANCELLED)
    ]
    around.sort(key=lambda other: abs(other.line.number - candidate.line.number))
    if around:
        return _of_rule(around[0])
    return UNKNOWN, FAILED


def _best_of_chain(candidate: Candidate, candidates: Sequence[Candidate]) -> tuple[str, str]:
    """The most special rule of the chain: `The read operation timed out` is the hub's where its last link says so."""
    links = [
        other
        for other in candidates
        if other.chain
        and other.chain == candidate.chain
        and other.rule is not None
        and other.rule.rank == ROOT
        and other.rule.cause
    ]
    best = min([candidate, *links], key=lambda other: other.rule.order if other.rule else 0)
    return _of_rule(best)


def _of_rule(candidate: Candidate) -> tuple[str, str]:
    rule = candidate.rule
    assert rule is not None
    return rule.cause or UNKNOWN, rule.verdict or BLOCKED


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


def backward(log: CandidateList) -> Candidate | None:
    """The first failure that pytest reports; else the last exception that passes on no other, of a chain the first
    link; else the first error right above the end, else the last."""
    told = [one for one in log.candidates if one.kind != LAST and not one.ignored and not one.survived]
    if reports := [one for one in told if one.kind == PYTEST]:
        return reports[0]
    raised = [one for one in told if one.kind in (EXCEPTION_END, EXCEPTION_LINE) and rank_of(one) != WRAPPER]
    ends = [one for one in raised if one.kind == EXCEPTION_END] or raised
    if ends:
        return next(one for one in ends if one is ends[-1] or (one.chain and one.chain == ends[-1].chain))
    errors = [one for one in told if one.line.level not in _WARNING and rank_of(one) != WRAPPER]
    near = [one for one in errors if log.lines - one.last_at <= _NEAR_DEATH]
    last = [one for one in log.candidates if one.kind == LAST][-1:]
    return next(iter(near or errors[-1:] or last), None)
