"""From the bytes of a log to a Triage, in one pass and bounded memory; and the reason of a failure, with what is known
of its end beside what the log says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ci_tasks.agent import run_directory
from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs import own_modules
from ci_tasks.logs.causes import CODE, NOTHING, TIMEOUT_HANG, UNKNOWN, JobEnd, JobKnowledge, group_of
from ci_tasks.logs.lines import read
from ci_tasks.logs.own_modules import IsOwnModule
from ci_tasks.logs.triage.candidate_reader import LAST, PYTEST, Candidate, CandidateReader
from ci_tasks.logs.triage.evidence import identify, of_ending, of_evidence
from ci_tasks.logs.triage.features import CandidateList, masked
from ci_tasks.logs.triage.ranking import Ranking, backward, blamed_group, cause_of, confidence_features, rank
from ci_tasks.logs.triage.rules import Rules, shipped
from ci_tasks.logs.triage.signature import of_code
from ci_tasks.logs.triage.uncaught import first_to_end, uncaught_candidates
from ci_tasks.logs.triage.weights import Weights, probability, score, shipped_weights
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, FailureEvidence, Triage, TriageCandidate

_PASSED = 0.97  # of an exit code 0: the exit code may lie
_GUESS = 0.05  # of a log that says nothing at all
_NO_REASON = 0.45  # of a log that tells that the job ended, or was killed, and nothing of why
_TEST_NAME = re.compile(r"^.*?\.py::")
_CANDIDATES = 10
_SUREST = 0.99
_NO_MODULE, _OWN_IMPORT = re.compile(r"No module named '((?:\w+\.)+\w+)'"), "import_error"
_ENGINE_DEATHS = ("engine-core", "scheduler-exception")  # the same of what says that an engine's process died
_NEAR_SUCCESS = 10  # lines
_AT_START = ("import_error", "dependency_version_mismatch")
_NAME_NOT_THERE = "import-name"  # a rule
_IMPORTS = re.compile(r":<module>$|importlib|:_call_with_frames_removed$|:_find_and_load")
_OF_TESTS = ("test-summary", "test-header", "no-testcase")  # rules of what says that a test failed
_KILLED = ("killed-child", "killed-by-shell")  # rules of lines that do not say by whom
_OF_A_KILL = (*_KILLED, "cancelled")  # rules of what the timeout itself makes a job print
_NOT_FOR_MEMORY = "a process was killed by SIGKILL, not by the kernel for its memory: it killed none meanwhile"
_LIKELY = 0.5  # confidence: less likely than not is no better than what is known, that the time was over


def together(jobs: Sequence[tuple[str, Triage]]) -> Triage:
    """The triage of the first job that failed, with all that did; those that failed in the same way are listed once."""
    if len(jobs) == 1:
        return jobs[0][1]
    failed = [pair for pair in jobs if pair[1].verdict in (FAILED, BLOCKED, CANCELLED)]
    alike: dict[str, list[tuple[str, Triage]]] = {}
    for name, found in failed:
        alike.setdefault(found.kind or name, []).append((name, found))
    listed = {", ".join(name for name, _ in pairs): _how(pairs[0][1]) for pairs in alike.values()}
    return replace((failed or jobs)[0][1], jobs=listed)


def _how(found: Triage) -> str:
    return f"{found.verdict}, {found.cause}{f': {found.text}' if found.text else ''}"


def triage(
    log: Iterable[bytes],
    exit_code: int | None = None,
    rules: Rules | None = None,
    *,
    passed: Iterable[Iterable[bytes]] = (),
    evidence: RunEvidence | None = None,
    is_own: IsOwnModule = own_modules.none,
) -> Triage:
    """The reason of a failure. `log` is the log's bytes in order, cut anywhere; `exit_code` is the job's, if it is
    known: 0 makes what was printed no failure, another one a failure of what says nothing. `passed` are logs of runs
    that passed: a line that they have too is no reason. `evidence` is what the probe saw: the exception that ended a
    process comes before what the log says. `is_own` says whether a module would be of the code under test."""
    rules, weights = rules or shipped(), shipped_weights()
    normal = frozenset().union(*(_templates(green, rules) for green in passed))
    reader = read_candidates(log, rules)
    if exit_code == 0:
        return Triage(NOTHING, PASSED, None, "", "", _PASSED)
    candidates = CandidateList.of(reader, normal)
    if printed := uncaught_candidates(candidates.candidates, evidence, rules):
        candidates = replace(candidates, candidates=printed)
    ends = bool(exit_code) or reader.failed or shows_death(candidates, reader.died_at)
    ranking = rank(candidates, weights, failed=ends)
    if not ranking.order and ends:
        return _silent(reader, exit_code)
    analysis = _Analysis(candidates, ranking, reader, rules, weights, exit_code, ends, is_own)
    if not ranking.failed:
        return _without_failure(analysis)
    return _of_engine(analysis.triage(), reader.engines, rules)


def shows_death(log: CandidateList, died_at: int) -> bool:
    """Whether a process died for good: no word of success outweighs that of an engine, nor a mark of failure near it or
    below it."""
    marks = [one for one in log.candidates if one.rule is not None and not (one.ignored or one.survived)]
    near = log.succeeded_at - _NEAR_SUCCESS
    return (died_at > near and died_at > 0) or any(
        one.rule.name in _ENGINE_DEATHS or (one.rule.name in _OF_TESTS and one.last_at > near)
        for one in marks
        if one.rule is not None
    )


def read_candidates(log: Iterable[bytes], rules: Rules) -> CandidateReader:
    """What of a log may be the reason."""
    reader = CandidateReader(rules)
    read(log, reader)
    return reader


def _templates(log: Iterable[bytes], rules: Rules) -> frozenset[str]:
    """What would be candidates of a run that passed."""
    return frozenset(masked(candidate.text) for candidate in read_candidates(log, rules).candidates)


def _silent(reader: CandidateReader, exit_code: int | None) -> Triage:
    last = reader.last
    silent = Triage(UNKNOWN, FAILED, last.number if last else None, last.shown if last else "", "", _GUESS)
    return replace(silent, **vars(of_ending(f"exit code {exit_code}", exit_code))) if exit_code else silent


@dataclass(frozen=True)
class _Analysis:
    """A log in which something failed. `ends` says that this is known, whatever its candidates are worth."""

    log: CandidateList
    ranking: Ranking
    reader: CandidateReader
    rules: Rules
    weights: Weights
    exit_code: int | None
    ends: bool
    is_own: IsOwnModule

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for _, candidate in self.ranking.order]

    @property
    def tested(self) -> bool:
        """Whether a test is said to have failed."""
        return any(
            one.kind == PYTEST or (one.rule is not None and one.rule.name in _OF_TESTS) for one in self.candidates
        )

    def triage(self) -> Triage:
        chosen = self.candidates[0]
        cause, verdict = self._blamed(chosen)
        agrees = chosen is backward(self.log)
        features = confidence_features(self.ranking, verdict == BLOCKED, self.ends, agrees)
        confidence = min(_SUREST, round(probability(score(self.weights.confidence, features)), 2))
        if chosen.kind == LAST and chosen.rule is None:  # it only stands there: share and score are all it has
            confidence = min(confidence, round(min(self.ranking.order[0][0], probability(self.ranking.best)), 2))
        if self.ranking.tells_only_an_end:
            confidence = min(confidence, _NO_REASON)
        if confidence < self.weights.least_confidence:
            verdict = FAILED if verdict == BLOCKED else verdict  # on the word of a line that is not believed
            return Triage(
                UNKNOWN, verdict, None, "", "", confidence, candidates=self.others(0), tests=self._failed_tests()
            )
        identity = identify(chosen, self.reader.candidates, self.exit_code)
        return Triage(
            cause=cause,
            verdict=verdict,
            line_no=chosen.line.number,
            line=chosen.line.shown,
            text=chosen.text,
            signature=identity.signature,
            kind=identity.kind,
            evidence=identity.evidence,
            confidence=confidence,
            context=(*chosen.before, chosen.line.shown, *chosen.after),
            reason=_explanation(chosen, cause, self.rules),
            rule=chosen.rule.name if chosen.rule else "",
            frames=of_code(chosen.frames),
            group=self._group(chosen, cause, verdict),
            candidates=self.others(1),
            tests=self._failed_tests(),
        )

    def _failed_tests(self) -> tuple[str, ...]:
        """The tests that pytest names, each with the place of its failure where that was printed."""
        places = {}
        for one in [one for one in self.reader.candidates if one.kind == PYTEST and self.reader.failed_tests]:
            found = identify(one, ()).evidence
            if found.line is not None:
                places[found.test] = f" ({found.source_path}:{found.line})"
        return tuple(f"{test}{places.get(_TEST_NAME.split(test)[-1], '')}" for test in self.reader.failed_tests)

    def _blamed(self, candidate: Candidate) -> tuple[str, str]:
        """(cause, verdict): of the environment only where no test of the code failed."""
        if self._lacks_own_module(candidate):
            return _OWN_IMPORT, FAILED
        cause, verdict = cause_of(candidate, self.candidates, self.rules)
        if self.tested and verdict == BLOCKED:
            return cause, FAILED
        lacks = cause in _AT_START and not self.tested and _lacks_package(candidate)
        return cause, BLOCKED if lacks else verdict

    def _lacks_own_module(self, candidate: Candidate) -> bool:
        missing = _NO_MODULE.search(candidate.text)
        return missing is not None and self.is_own(missing[1])

    def _group(self, candidate: Candidate, cause: str, verdict: str) -> str:
        return CODE if self._lacks_own_module(candidate) else blamed_group(candidate, cause, verdict)

    def others(self, first: int) -> tuple[TriageCandidate, ...]:
        """The next best, each with the share that the ranking leaves to it."""
        return tuple(self._candidate(*pair) for pair in self.ranking.order[first:_CANDIDATES])

    def _candidate(self, share: float, candidate: Candidate) -> TriageCandidate:
        cause, verdict = self._blamed(candidate)
        rule, group = candidate.rule.name if candidate.rule else "", self._group(candidate, cause, verdict)
        line = candidate.line
        return TriageCandidate(cause, verdict, line.number, line.shown, rule, group, round(share, 2))


def _lacks_package(candidate: Candidate) -> bool:
    """Whether a package is missing, or another one, before anything of the code ran: pip's index offers none at all, or
    each frame of the traceback is of a module that imports the next. A name that a module does not have may well be the
    code's own."""
    is_name = candidate.rule is not None and candidate.rule.name == _NAME_NOT_THERE
    imports = bool(candidate.frames) and not is_name and all(_IMPORTS.search(frame) for frame in candidate.frames)
    return imports or "(from versions: none)" in candidate.text


def _without_failure(analysis: _Analysis) -> Triage:
    """Of a log that shows no failure: it has passed only if it says so, since a log may be cut off anywhere."""
    if not analysis.reader.got_through:
        return Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0, candidates=analysis.others(0))
    confidence = probability(
        score(
            analysis.weights.confidence, confidence_features(analysis.ranking, blocked=False, ends=False, agrees=False)
        )
    )
    return Triage(NOTHING, PASSED, None, "", "", min(_SUREST, round(confidence, 2)))


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


def analyse(log: Iterable[bytes], ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage:
    """Why a job failed; what ran into its timeout hangs, unless the log knows better."""
    result = triage(log, ended.exit_code, passed=known.passed, evidence=known.evidence, is_own=known.is_own_module)
    knows_better = result.cause != UNKNOWN and result.confidence >= _LIKELY and result.rule not in _OF_A_KILL
    if result.rule in _KILLED and ended.oom_kills == 0:
        blameless = replace(result, cause=UNKNOWN, verdict=FAILED, group=group_of(UNKNOWN))
        result = replace(blameless, reason=_NOT_FOR_MEMORY)
    if ended.end != run_directory.END_TIMEOUT:
        return _with_first_to_end(result, known)
    if knows_better:
        return result
    identity = of_evidence(replace(result.evidence or FailureEvidence(), exception="timeout"))
    hang = replace(result, cause=TIMEOUT_HANG, verdict=FAILED, group=group_of(TIMEOUT_HANG), **vars(identity))
    return replace(hang, reason=f"it did not end within {ended.timeout_minutes:g} min")


def _with_first_to_end(result: Triage, known: JobKnowledge) -> Triage:
    """With the rank that ended first, before what the log says. After a timeout all were killed."""
    if result.verdict not in (FAILED, BLOCKED):
        return result
    first = first_to_end(known.evidence, shipped())
    return replace(result, reason="; ".join(filter(None, [first, result.reason]))) if first else result
