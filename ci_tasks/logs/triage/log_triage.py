"""From the bytes of a log to a Triage, in one pass and bounded memory; and the reason of a failure, with what is known
of its end beside what the log says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs import own_modules
from ci_tasks.logs.causes import CODE, NOTHING, TIMEOUT_HANG, UNKNOWN, JobEnd, JobKnowledge, group_of
from ci_tasks.logs.lines import read
from ci_tasks.logs.own_modules import IsOwnModule
from ci_tasks.logs.triage import ranking as ranks
from ci_tasks.logs.triage.candidate_reader import LAST, PYTEST, Candidate, CandidateReader
from ci_tasks.logs.triage.evidence import identify, of_ending, of_evidence
from ci_tasks.logs.triage.ranking import CandidateList, Ranking
from ci_tasks.logs.triage.rules import NO_RULE, Rules, shipped
from ci_tasks.logs.triage.signature import of_code, stable
from ci_tasks.logs.triage.uncaught import first_to_end, uncaught_candidates
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, FailureEvidence, Triage, TriageCandidate

_PASSED = 0.97  # of an exit code 0: the exit code may lie
_GUESS = 0.05  # of a log that says nothing at all
_NO_REASON = 0.45  # of a log that tells that the job ended, or was killed, and nothing of why
_SUREST = 0.99
_LIKELY = 0.5  # confidence: less likely than not is no better than what is known, that the time was over
_CANDIDATES = 10
_NEAR_SUCCESS = 10  # lines
_TEST_NAME = re.compile(r"^.*?\.py::")
_NO_MODULE, _OWN_IMPORT = re.compile(r"No module named '((?:\w+\.)+\w+)'"), "import_error"
_ENGINE_DEATHS = ("engine-core", "scheduler-exception")  # rules of what says that an engine's process died
_ENGINES = ("sglang", "vllm")
_AT_START = ("import_error", "dependency_version_mismatch")
_NAME_NOT_THERE = "import-name"  # a rule
_IMPORTS = re.compile(r":<module>$|importlib|:_call_with_frames_removed$|:_find_and_load")
_OF_TESTS = ("test-summary", "test-header", "no-testcase")  # rules of what says that a test failed
_KILLED = ("killed-child", "killed-by-shell")  # rules of lines that do not say by whom
_OF_A_KILL = (*_KILLED, "cancelled")  # rules of what the timeout itself makes a job print
_NOT_FOR_MEMORY = "a process was killed by SIGKILL, not by the kernel for its memory: it killed none meanwhile"


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


def read_candidates(log: Iterable[bytes], rules: Rules | None = None) -> CandidateReader:
    """What of a log may be the reason."""
    reader = CandidateReader(rules or shipped())
    read(log, reader)
    return reader


def analyse(log: Iterable[bytes] | CandidateReader, ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage:
    """Why a job failed, by its log, which may be read already; what ran into its timeout hangs, unless the log knows
    better."""
    result = triage(log, ended.exit_code, passed=known.passed, evidence=known.evidence, is_own=known.is_own_module)
    knows_better = result.cause != UNKNOWN and result.confidence >= _LIKELY and result.rule not in _OF_A_KILL
    if result.rule in _KILLED and ended.oom_kills == 0:
        blameless = replace(result, cause=UNKNOWN, verdict=FAILED, group=group_of(UNKNOWN))
        result = replace(blameless, reason=_NOT_FOR_MEMORY)
    if ended.end == "timeout":
        return result if knows_better else _hang(result, ended)
    # After a timeout all ranks were killed; else the one that ended first stands before what the log says.
    first = first_to_end(known.evidence, shipped()) if result.verdict in (FAILED, BLOCKED) else ""
    return replace(result, reason="; ".join(filter(None, [first, result.reason])))


def _hang(result: Triage, ended: JobEnd) -> Triage:
    identity = of_evidence(replace(result.evidence or FailureEvidence(), exception="timeout"))
    hang = replace(result, cause=TIMEOUT_HANG, verdict=FAILED, group=group_of(TIMEOUT_HANG), **vars(identity))
    return replace(hang, reason=f"it did not end within {ended.timeout_minutes:g} min")


def triage(
    log: Iterable[bytes] | CandidateReader,
    exit_code: int | None = None,
    rules: Rules | None = None,
    *,
    passed: Iterable[Iterable[bytes]] = (),
    evidence: RunEvidence | None = None,
    is_own: IsOwnModule = own_modules.none,
) -> Triage:
    """The reason of a failure. `log` is the log's bytes in order, cut anywhere, or what was read of them; `exit_code`
    is the job's, if it is known: 0 makes what was printed no failure, another one a failure of what says nothing.
    `passed` are logs of runs that passed: a line that they have too is no reason. `evidence` is what the probe saw: the
    exception that ended a process comes before what the log says. `is_own` says whether a module would be of the code
    under test."""
    if exit_code == 0:
        return Triage(NOTHING, PASSED, None, "", "", _PASSED)
    rules = rules or shipped()
    reader = log if isinstance(log, CandidateReader) else read_candidates(log, rules)
    normal = {stable(candidate.text) for green in passed for candidate in read_candidates(green, rules).candidates}
    candidates = CandidateList.of(reader, normal)
    if printed := uncaught_candidates(candidates.candidates, evidence, rules):
        candidates = replace(candidates, candidates=printed)
    ends = bool(exit_code) or reader.failed or _shows_death(candidates, reader.died_at)
    ranking = ranks.rank(candidates, ranks.shipped_weights().ranking, failed=ends)
    analysis = _Analysis(ranking, reader, rules, exit_code, ends, is_own)
    if not ranking.order and ends:
        return analysis.of_nothing_said()
    return analysis.triage() if ranking.failed else analysis.without_failure()


def _shows_death(log: CandidateList, died_at: int) -> bool:
    """Whether a process died for good: no word of success outweighs that of an engine, nor a mark of failure near it or
    below it."""
    near = log.succeeded_at - _NEAR_SUCCESS
    rules = [(one.rule.name, one.last_at) for one in log.candidates if not (one.ignored or one.survived)]
    marked = any(name in _ENGINE_DEATHS or (name in _OF_TESTS and at > near) for name, at in rules)
    killed = any(name in _KILLED and at >= log.lines - 1 for name, at in rules)
    return marked or killed or died_at > max(near, 0)


@dataclass(frozen=True)
class _Analysis:
    """A log with its candidates in order. `ends` says that something is known to have failed."""

    ranking: Ranking
    reader: CandidateReader
    rules: Rules
    exit_code: int | None
    ends: bool
    is_own: IsOwnModule

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for _, candidate in self.ranking.order]

    def triage(self) -> Triage:
        chosen, rule = self.candidates[0], self.candidates[0].rule
        cause, verdict, group = self._blamed(chosen)
        engine = next((name for name in _ENGINES if name in " ".join(chosen.frames)), "")
        if cause == UNKNOWN and rule is NO_RULE and engine:
            cause, group = f"{engine}_engine_crash", CODE  # of an exception of which nothing else is known
        confidence = self._confidence(chosen, verdict)
        if confidence < ranks.shipped_weights().least_confidence:
            verdict = FAILED if verdict == BLOCKED else verdict  # on the word of a line that is not believed
            others, tests = self._others(0), self._failed_tests()
            return Triage(UNKNOWN, verdict, None, "", "", confidence, candidates=others, tests=tests)
        return Triage(
            cause=cause,
            verdict=verdict,
            line_no=chosen.line.number,
            line=chosen.line.shown,
            text=chosen.text,
            confidence=confidence,
            context=(*chosen.before, chosen.line.shown, *chosen.after),
            reason=rule.reason if rule.cause == cause else self.rules.explanations.get(cause, rule.reason),
            rule=rule.name,
            frames=of_code(chosen.frames),
            group=group,
            candidates=self._others(1),
            tests=self._failed_tests(),
            **vars(identify(chosen, self.reader.candidates, self.exit_code)),
        )

    def of_nothing_said(self) -> Triage:
        last, code = self.reader.last, self.exit_code
        silent = Triage(UNKNOWN, FAILED, last.number if last else None, last.shown if last else "", "", _GUESS)
        return replace(silent, **vars(of_ending(f"exit code {code}", code))) if code else silent

    def without_failure(self) -> Triage:
        """Of a log that shows no failure: it has passed only if it says so, since a log may be cut off anywhere."""
        if not self.reader.got_through:
            return Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0, candidates=self._others(0))
        return Triage(NOTHING, PASSED, None, "", "", min(_SUREST, round(self._likelihood(PASSED, ends=False), 2)))

    def _likelihood(self, verdict: str, ends: bool) -> float:
        features = ranks.confidence_features(self.ranking, verdict == BLOCKED, ends)
        return ranks.probability(ranks.score(ranks.shipped_weights().confidence, features))

    def _confidence(self, chosen: Candidate, verdict: str) -> float:
        limits = [_SUREST, self._likelihood(verdict, self.ends)]
        if chosen.kind == LAST and chosen.rule is NO_RULE:  # it only stands there: share and score are all it has
            limits += [self.ranking.order[0][0], ranks.probability(self.ranking.best)]
        if self.ranking.tells_only_an_end:
            limits.append(_NO_REASON)
        return round(min(limits), 2)

    def _failed_tests(self) -> tuple[str, ...]:
        """The tests that pytest names, each with the place of its failure where that was printed."""
        places = {}
        for one in [one for one in self.reader.candidates if one.kind == PYTEST and self.reader.failed_tests]:
            found = identify(one, ()).evidence
            if found.line is not None:
                places[found.test] = f" ({found.source_path}:{found.line})"
        return tuple(f"{test}{places.get(_TEST_NAME.split(test)[-1], '')}" for test in self.reader.failed_tests)

    def _blamed(self, candidate: Candidate) -> tuple[str, str, str]:
        """(cause, verdict, group): of the environment only where no test of the code failed."""
        if (missing := _NO_MODULE.search(candidate.text)) and self.is_own(missing[1]):
            return _OWN_IMPORT, FAILED, CODE
        cause, verdict = ranks.cause_of(candidate, self.candidates, self.rules)
        if any(one.kind == PYTEST or one.rule.name in _OF_TESTS for one in self.candidates):
            verdict = FAILED if verdict == BLOCKED else verdict
        elif cause in _AT_START and _lacks_package(candidate):
            verdict = BLOCKED
        return cause, verdict, ranks.blamed_group(candidate, cause, verdict)

    def _others(self, first: int) -> tuple[TriageCandidate, ...]:
        """The next best, each with the share that the ranking leaves to it."""
        others = []
        for share, one in self.ranking.order[first:_CANDIDATES]:
            cause, verdict, group = self._blamed(one)
            number, shown = one.line.number, one.line.shown
            others.append(TriageCandidate(cause, verdict, number, shown, one.rule.name, group, round(share, 2)))
        return tuple(others)


def _lacks_package(candidate: Candidate) -> bool:
    """Whether a package is missing, or another one, before anything of the code ran: pip's index offers none at all, or
    each frame of the traceback is of a module that imports the next. A name that a module does not have may well be the
    code's own."""
    is_name = candidate.rule.name == _NAME_NOT_THERE
    imports = bool(candidate.frames) and not is_name and all(_IMPORTS.search(frame) for frame in candidate.frames)
    return imports or "(from versions: none)" in candidate.text
