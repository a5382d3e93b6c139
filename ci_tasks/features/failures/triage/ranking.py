"""Of all that may be the reason, the one that a maintainer would quote.

Each candidate has a weight: what its rule says of it, how it was printed, whether somebody went on after it, and how
many others stood before it. Of a chain of exceptions the first link speaks, unless a later one knows more.
"""

from __future__ import annotations

import re

from ci_tasks.features.failures.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, PLAIN, PYTEST, Candidate
from ci_tasks.features.failures.triage.rules import ROOT, SYMPTOM, WRAPPER, Rules
from ci_tasks.records import BLOCKED, FAILED
from ci_tasks.results.triage import UNKNOWN

# An explanation as a traceback's end or in pytest's report; on a line by itself; in a mere warning.
_ROOT = {EXCEPTION_END: 100.0, PYTEST: 100.0, EXCEPTION_LINE: 96.0, PLAIN: 94.0}
_BARE = {EXCEPTION_END: 84.0, PYTEST: 82.0, EXCEPTION_LINE: 70.0, PLAIN: 40.0}
_SYMPTOM = {EXCEPTION_END: 86.0, PYTEST: 86.0, EXCEPTION_LINE: 80.0, PLAIN: 60.0}
_WRAPPER = 15.0
_WARNED, _MENTIONED = 30.0, 45.0  # less, for what was said as a warning or by the way
_SURVIVED = 30.0  # less, where somebody said that it goes on all the same
_LATER = 5.0  # less for each other candidate before it
_LATEST = 30.0
_IGNORED = 5.0
_NEAR = 200  # lines
FLOOR = 30.0  # from here on something failed, whatever the end of the log says
_CONTROL_FLOW = ("StopIteration", "StopAsyncIteration", "queue.Empty", "_queue.Empty")  # how loops and queues end
_QUIET = ("warning", "warn", "info", "debug", "w", "i", "d", "notice")


_SUMMARY = re.compile(r"(?:FAILED|ERROR) \S+(?: [^-]*)? - (.+)")  # pytest's summary names the exception too


def weight(candidate: Candidate) -> float:
    """How much speaks for it."""
    if candidate.ignored:
        return _IGNORED
    rule = candidate.rule
    if rule is not None and rule.rank == WRAPPER:
        if candidate.line.level.startswith("i"):
            return _IGNORED
        return _WRAPPER - 0.01 * candidate.order - (0.0 if rule.cause else 3.0)
    if rule is None:
        base = _BARE[candidate.kind]
    elif rule.rank == SYMPTOM:
        base = _SYMPTOM[candidate.kind]
    else:
        base = _ROOT[candidate.kind]
    if candidate.kind in (PLAIN, EXCEPTION_LINE) and candidate.line.level in _QUIET:
        base -= _WARNED if candidate.line.level.startswith("w") else _MENTIONED
    if candidate.survived:
        base -= _SURVIVED
    return base - min(_LATEST, _LATER * candidate.order) - 2.0 * candidate.depth


def ranked(candidates: list[Candidate]) -> list[tuple[float, Candidate]]:
    """The candidates with their weights, the best first. Of each chain its first link that is no mere messenger,
    with the weight of the best: what was raised while that was handled knows more of what it meant, but is not where
    it began."""
    chains: dict[int, list[tuple[float, Candidate]]] = {}
    heads = []
    for candidate in candidates:
        weighed = (weight(candidate), candidate)
        if candidate.chain:
            chains.setdefault(candidate.chain, []).append(weighed)
        else:
            heads.append(weighed)
    for links in chains.values():
        links.sort(key=lambda pair: pair[1].depth)
        informative = [
            candidate for value, candidate in links if value > _WRAPPER and candidate.type not in _CONTROL_FLOW
        ]
        first = informative[0] if informative else max(links, key=lambda pair: pair[0])[1]
        heads.append((max(value for value, _ in links), first))
    return sorted(heads, key=lambda pair: (-pair[0], pair[1].line.number))


def cause_of(candidate: Candidate, candidates: list[Candidate], rules: Rules) -> tuple[str, str]:
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


def _own_cause(candidate: Candidate, candidates: list[Candidate], rules: Rules) -> tuple[str, str]:
    """(cause, verdict) of the chosen line. A bare exception has the cause of its chain, then of the code that raised
    it, then of what wraps it."""
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
        other for other in candidates if other.rule is not None and other.rule.rank == WRAPPER and other.rule.cause
    ]
    around.sort(key=lambda other: abs(other.line.number - candidate.line.number))
    if around:
        return _of_rule(around[0])
    return UNKNOWN, FAILED


def _best_of_chain(candidate: Candidate, candidates: list[Candidate]) -> tuple[str, str]:
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
