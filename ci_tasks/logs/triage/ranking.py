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
from ci_tasks.logs.triage.rules import ROOT, WRAPPER, Rule, Rules
from ci_tasks.logs.triage.weights import Weights, probabilities, score
from ci_tasks.records import BLOCKED, CANCELLED, FAILED

_NEAR = 200  # lines
_SURELY_FAILED = 1e-6  # share of "nothing failed" where it is known that something did
_ENDS = {"launcher", "going-down", "killed-child", "killed-by-shell", "cancelled"}  # rules
_HUB, _SOON = "hub", 40  # a rule; lines
_NOT_THERE = re.compile(
    r"(?i)repositor|local (?:directory|path|folder)|snapshot|offline|cached|could ?n.t (?:find|load)|not found"
)
_SUMMARY = re.compile(r"(?:FAILED|ERROR) \S+(?: [^-]*)? - (.+)")  # pytest's summary names the exception too
_LEAST = 1e-4
# Features of the chosen line, and of "nothing failed", that say how sure it is.
_OF_CHOICE = (
    *("first root", "a root stands elsewhere", "raised last", "quoted later", "a success came later"),
    *("passed on later", "plain beside a traceback", "survived"),
)
_OF_NOTHING = ("no candidate", "no traceback", "succeeded after all")


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
        return bool(told) and told <= _ENDS


def rank(log: CandidateList, weights: Weights, failed: bool) -> Ranking:
    """What may be the reason; `failed` says that something is known to have failed."""
    rows = [*features(log), features_of_none(log)]
    return ranked(log, rows, [score(weights.ranking, row) for row in rows], failed)


def ranked(log: CandidateList, rows: Sequence[Features], scores: Sequence[float], failed: bool) -> Ranking:
    """The same from features and scores, of which the last are those of "nothing failed"."""
    *shares, none = probabilities([*scores[:-1], -1e3 if failed else scores[-1]])
    pairs = sorted(zip(shares, log.candidates, strict=True), key=lambda pair: (-pair[0], pair[1].line.number))
    order = _refusal_before_consequence(pairs) + [(0.0, candidate) for candidate in log.consequences]
    of = {id(one): row for one, row in zip(log.candidates, rows, strict=False)}
    ranking = Ranking(order, none, max(scores[:-1], default=0.0), rows[-1])
    return replace(ranking, features=of[id(order[0][1])]) if ranking.failed else ranking


def _refusal_before_consequence(pairs: list[tuple[float, Candidate]]) -> list[tuple[float, Candidate]]:
    """What the hub refused is missing later: that it is not there is a consequence."""
    first = pairs[0][1] if pairs else None
    if first is None or not _NOT_THERE.search(" ".join([first.text, *first.after[:2]])):
        return pairs
    for at, (_, one) in enumerate(pairs):
        is_refusal = one.rule is not None and one.rule.name == _HUB and not one.survived
        if is_refusal and 0 < first.line.number - one.last_at <= _SOON:
            return [(pairs[0][0], one), *pairs[:at], *pairs[at + 1 :]]
    return pairs


def cause_of(candidate: Candidate, candidates: Sequence[Candidate], rules: Rules) -> tuple[str, str]:
    """(cause, verdict) of the chosen line; where what wraps it says more, that."""
    own = _own_cause(candidate, candidates, rules)
    near = [one for one in candidates if one.rule and abs(one.line.number - candidate.line.number) < _NEAR]
    over = next((one.rule for one in near if one.rule and own[0] in one.rule.over), None)
    return _of_rule(over) if over else own


def _own_cause(candidate: Candidate, candidates: Sequence[Candidate], rules: Rules) -> tuple[str, str]:
    """(cause, verdict) of the chosen line: those of the most special root of its chain (`The read operation timed out`
    is the hub's where its last link says so), else of what wraps it there, of the code that raised it, of its own rule,
    or of the nearest wrapper."""
    rule = candidate.rule
    if rule is not None and rule.verdict == CANCELLED:
        return _of_rule(rule)
    summary = _SUMMARY.match(candidate.text)
    if summary and (named := rules.of(summary[1])) and named.cause and not (rule and rule.rank == ROOT and rule.cause):
        return _of_rule(named)
    links = [one for one in candidates if one is candidate or (one.chain and one.chain == candidate.chain)]
    of_chain = [one.rule for one in links if one.rule is not None and one.rule.cause]
    if roots := [link for link in of_chain if link.rank == ROOT]:
        return _of_rule(min(roots, key=lambda root: root.order))
    if wrapping := [link for link in of_chain if link is not rule]:
        return _of_rule(wrapping[0])
    place = rules.place(candidate.text, list(reversed(candidate.frames))[:12])
    if place is not None:
        return place.cause, place.verdict
    if rule is not None and rule.cause:
        return _of_rule(rule)
    around = [
        one for one in candidates if one.rule and rank_of(one) == WRAPPER and one.rule.cause not in ("", CANCELLED)
    ]
    nearest = min(around, key=lambda one: abs(one.line.number - candidate.line.number), default=None)
    return _of_rule(nearest.rule) if nearest and nearest.rule else (UNKNOWN, FAILED)


def _of_rule(rule: Rule) -> tuple[str, str]:
    return rule.cause or UNKNOWN, rule.verdict or BLOCKED


def blamed_group(candidate: Candidate, cause: str, verdict: str) -> str:
    """The group of the cause; that of the code for an exception of no known cause that is not the environment's."""
    is_code = cause == UNKNOWN and verdict == FAILED and candidate.kind in (EXCEPTION_END, EXCEPTION_LINE, PYTEST)
    return CODE if is_code else group_of(cause)


def confidence_features(ranking: Ranking, blocked: bool, ends: bool) -> Features:
    """What speaks for line and verdict. `blocked` says that the environment is blamed, `ends` that the exit code is
    known."""
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
        "exit code known": ends,
        "candidates": math.log1p(len(ranking.order)),
        f"kind {candidate.kind}": 1,
        f"rank {rank_of(candidate)}": 1,
        **{name: ranking.features.get(name, 0.0) for name in _OF_CHOICE},
    }


def _log_odds(share: float) -> float:
    share = min(max(share, _LEAST), 1 - _LEAST)
    return math.log(share / (1 - share))
