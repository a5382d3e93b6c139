"""From the bytes of a log to a Triage, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ci_tasks.features.failures.triage.candidate_reader import PLAIN, Candidate, CandidateReader
from ci_tasks.features.failures.triage.identity import identify, of_ending
from ci_tasks.features.failures.triage.line_template import masked
from ci_tasks.features.failures.triage.log_prefixes import read
from ci_tasks.features.failures.triage.ranking import FLOOR, cause_of, ranked
from ci_tasks.features.failures.triage.rules import ROOT, WRAPPER, Rules, shipped
from ci_tasks.features.failures.triage.signature import of_code
from ci_tasks.records import FAILED, PASSED, Triage, TriageCandidate
from ci_tasks.results.log_scanner import LogScanner
from ci_tasks.results.triage import NOTHING, UNKNOWN, group_of

_IGNORED_ONLY = 5.0  # no more speaks for it than for what Python ignored
_CLOSE = 14.0  # how far behind a second one still makes us unsure
_MERE_ENDS = ("launcher", "going-down")
_SURE, _BARE, _WRAPPED, _GUESS = 0.9, 0.7, 0.35, 0.1


def triage(
    log: Iterable[bytes],
    exit_code: int | None = None,
    rules: Rules | None = None,
    *,
    passed: Iterable[Iterable[bytes]] = (),
) -> Triage:
    """The reason of a failure. `log` is the log's bytes in order, cut anywhere; `exit_code` is the job's, if it is
    known: 0 makes what was printed no failure, another one a failure of what says nothing. `passed` are logs of runs
    that passed: a line that they have too is no reason."""
    rules = rules or shipped()
    normal = frozenset().union(*(_templates(green, rules) for green in passed))
    reader = read_candidates(log, rules)
    order = ranked([candidate for candidate in reader.candidates if masked(candidate.text) not in normal])
    if exit_code == 0:
        return Triage(NOTHING, PASSED, None, "", "", _SURE)
    if not _failed(order, reader, exit_code):
        return _without_failure(reader)
    if not order:
        last = reader.last
        silent = Triage(UNKNOWN, FAILED, last.number if last else None, last.shown if last else "", "", _GUESS)
        return replace(silent, **vars(of_ending(f"exit code {exit_code}", exit_code))) if exit_code else silent
    return _of_engine(_triage_of(order, reader.candidates, rules, exit_code), reader.engines, rules)


def read_candidates(log: Iterable[bytes], rules: Rules) -> CandidateReader:
    """What of a log may be the reason."""
    reader = CandidateReader(rules)
    scanner = LogScanner(rules.keywords, reader.needs_next_line)
    scanner.read(log, reader.feed)
    reader.end(scanner.tail)
    return reader


def _templates(log: Iterable[bytes], rules: Rules) -> frozenset[str]:
    """What would be candidates of a run that passed."""
    return frozenset(masked(candidate.text) for candidate in read_candidates(log, rules).candidates)


def _without_failure(reader: CandidateReader) -> Triage:
    """Of a log that shows no failure: it has passed only if it says so, since a log may be cut off anywhere."""
    if reader.succeeded_at:
        return Triage(NOTHING, PASSED, None, "", "", _SURE)
    return Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0)


def _failed(order: list[tuple[float, Candidate]], reader: CandidateReader, exit_code: int | None) -> bool:
    """Without an exit code the log has to say: what only wraps a failure, or was followed by the job's own word that
    it got through, is none."""
    if exit_code:
        return True
    if not order:
        return False
    best = order[0][0]
    line_numbers = [candidate.line.number for value, candidate in order if value > _IGNORED_ONLY]
    got_through = reader.succeeded_at or reader.got_on_at
    if (got_through and best < FLOOR) or (reader.succeeded_at and reader.succeeded_at > max(line_numbers, default=0)):
        return False
    return bool(line_numbers)


def _triage_of(
    order: list[tuple[float, Candidate]], candidates: list[Candidate], rules: Rules, exit_code: int | None
) -> Triage:
    best, chosen = order[0]
    if chosen.rule is not None and chosen.rule.name in _MERE_ENDS and (before := _line_before(chosen, rules)):
        chosen = before
    cause, verdict = cause_of(chosen, candidates, rules)
    identity = identify(chosen, candidates, exit_code)
    second = next((pair for pair in order[1:] if best - pair[0] < _CLOSE), None)
    return Triage(
        cause=cause,
        verdict=verdict,
        line_no=chosen.line.number,
        line=chosen.line.shown,
        text=chosen.text,
        signature=identity.signature,
        kind=identity.kind,
        evidence=identity.evidence,
        confidence=_confidence(best, chosen, cause, second is not None),
        context=(*chosen.before, chosen.line.shown, *chosen.after),
        reason=_explanation(chosen, cause, rules),
        rule=chosen.rule.name if chosen.rule else "",
        frames=of_code(chosen.frames),
        group=group_of(cause),
        candidates=tuple(_candidate(other, candidates, rules) for _, other in order[1:3]),
    )


def _explanation(chosen: Candidate, cause: str, rules: Rules) -> str:
    """The rule's own words of its cause; another cause has those of its own."""
    own = chosen.rule.reason if chosen.rule else ""
    return own if chosen.rule and chosen.rule.cause == cause else rules.explanations.get(cause, own)


def _of_engine(result: Triage, named: dict[str, int], rules: Rules) -> Triage:
    """An exception of which nothing else is known, in a log that is full of an engine's lines, is that engine's."""
    engine = max(named, key=lambda name: named[name])
    if result.cause != UNKNOWN or result.rule or not result.frames or not named[engine]:
        return result
    cause = f"{engine}_engine_crash"
    return replace(result, cause=cause, group=group_of(cause), reason=rules.explanations.get(cause, ""))


def _line_before(chosen: Candidate, rules: Rules) -> Candidate | None:
    """What was said last before somebody only noted that it failed: a script's own words, which no rule knows."""
    for back, shown in enumerate(reversed(chosen.before), 1):
        line = read(chosen.line.number - back, shown.encode("utf-8", "replace"))
        rule = rules.of(line.text, raised=False)
        if line.text.strip() and not shown.lstrip().startswith("##[") and (rule is None or rule.rank == ROOT):
            return Candidate(line, line.text, PLAIN, None, 0, before=chosen.before[:-back], after=[chosen.line.shown])
        if rule is not None:
            return None
    return None


def _candidate(candidate: Candidate, candidates: list[Candidate], rules: Rules) -> TriageCandidate:
    cause, verdict = cause_of(candidate, candidates, rules)
    rule = candidate.rule.name if candidate.rule else ""
    return TriageCandidate(cause, verdict, candidate.line.number, candidate.line.shown, rule, group_of(cause))


def _confidence(best: float, chosen: Candidate, cause: str, close: bool) -> float:
    if chosen.rule is not None and chosen.rule.rank == WRAPPER:
        base = _WRAPPED
    elif chosen.rule is not None and chosen.rule.rank == ROOT:
        base = _SURE if best > 70 else 0.6
    else:
        base = _BARE if cause != UNKNOWN else 0.5
    return round(base * (0.75 if close else 1.0), 2)
