"""Of all that may be the reason, the one that a maintainer would quote, or that nothing failed; and its cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.triage.candidate_reader import LAST, Candidate
from ci_tasks.features.failures.triage.features import CandidateList, Features, features, features_of_none
from ci_tasks.features.failures.triage.rules import ROOT, WRAPPER, Rules
from ci_tasks.features.failures.triage.weights import Weights, probabilities, score
from ci_tasks.logs.causes import UNKNOWN
from ci_tasks.records import BLOCKED, CANCELLED, FAILED

_NEAR = 200  # lines
_SURELY_FAILED = 1e-6  # share of "nothing failed" where it is known that something did
_MERE_ENDS, _KILLS = ("launcher", "going-down"), ("killed-child", "killed-by-shell", "cancelled")  # rules
_HUB, _SOON = "hub", 40  # a rule; lines
_NOT_THERE = re.compile(
    r"(?i)repositor|local (?:directory|path|folder)|snapshot|offline|cached|could ?n.t (?:find|load)|not found"
)
_SUMMARY = re.compile(r"(?:FAILED|ERROR) \S+(?: [^-]*)? - (.+)")  # pytest's summary names the exception too


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
