"""From the bytes of a log to a Triage, in one pass and bounded memory; and the reason of a failure, with what is known
of its end beside what the log says: the probe's exceptions, and which rank ended first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ci_tasks.agent.evidence import LinkedException, NotedException, ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs import causes
from ci_tasks.logs.causes import CODE, NOTHING, TIMEOUT_HANG, UNKNOWN, JobEnd, JobKnowledge
from ci_tasks.logs.lines import read
from ci_tasks.logs.triage import ranking as ranks
from ci_tasks.logs.triage.candidate_reader import LAST, PYTEST, Candidate, CandidateReader
from ci_tasks.logs.triage.ranking import CandidateList, Ranking
from ci_tasks.logs.triage.rules import NO_RULE, WRAPPER, Rules, shipped
from ci_tasks.logs.triage.signature import TIMEOUT, evidence_of, of_code, stable, with_evidence
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, FailureEvidence, Triage, TriageCandidate

_PASSED = 0.97  # of an exit code 0: the exit code may lie
_GUESS = 0.05  # of a log that says nothing at all
_SUREST = 0.99
_LEAST = 0.3  # below, fewer than one in three lines were right, and none is named
_LIKELY = 0.5  # confidence: less likely than not is no better than what is known, that the time was over
_CANDIDATES = 10
_NEAR_SUCCESS = 10  # lines
_TEST_NAME = re.compile(r"^.*?\.py::")
_NO_MODULE, _OWN_IMPORT = re.compile(r"No module named '((?:\w+\.)+\w+)'"), "import_error"
_ENGINE_DEATHS = ("engine-core", "scheduler-exception")  # rules of what says that an engine's process died
_AT_START = ("import_error", "dependency_version_mismatch")
_NAME_NOT_THERE = "import-name"  # a rule
_IMPORTS = re.compile(r":<module>$|importlib|:_call_with_frames_removed$|:_find_and_load")
_OF_TESTS = ("test-summary", "test-header", "no-testcase")  # rules of what says that a test failed
_OF_A_KILL = (*ranks.KILLED, "cancelled")  # rules of what the timeout itself makes a job print
_NOT_FOR_MEMORY = "a process was killed by SIGKILL, not by the kernel's OOM killer: it killed nothing meanwhile"
_OF_COMMUNICATION = ("nccl_error", "ray_cluster")
_LEAST_RANKS = 2


def together(jobs: Sequence[tuple[str, Triage]]) -> Triage:
    """The triage of the first job that failed, was blocked or cancelled, in this order: a failure may cancel others.
    With all of these jobs; equal failures are listed once."""
    if len(jobs) == 1:
        return jobs[0][1]
    failed = [pair for verdict in (FAILED, BLOCKED, CANCELLED) for pair in jobs if pair[1].verdict == verdict]
    alike: dict[str, list[tuple[str, Triage]]] = {}
    for name, found in failed:
        alike.setdefault(found.kind or name, []).append((name, found))
    listed = {}
    for pairs in alike.values():
        names, found = ", ".join(name for name, _ in pairs), pairs[0][1]
        listed[names] = f"{found.verdict}, {found.cause}: {found.text}".removesuffix(": ")
    return replace((failed or jobs)[0][1], jobs=listed)


def read_candidates(log: Iterable[bytes], rules: Rules | None = None) -> CandidateReader:
    """What of a log may be the reason."""
    reader = CandidateReader(rules or shipped())
    read(log, reader)
    return reader


def analyse(log: Iterable[bytes] | CandidateReader, ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage:
    """Why a job failed, by its log, which may be read already; what ran into its timeout hangs, unless the log knows
    better."""
    result = triage(log, ended.exit_code, known=known)
    knows_better = result.cause != UNKNOWN and result.confidence >= _LIKELY and result.rule not in _OF_A_KILL
    if result.rule in ranks.KILLED and ended.oom_kills == 0:
        result = replace(result, cause=UNKNOWN, verdict=FAILED, group=causes.group_of(UNKNOWN), reason=_NOT_FOR_MEMORY)
    if ended.end == "timeout":
        return result if knows_better else _hang(result, ended)
    # After a timeout all ranks were killed; else the one that ended first stands before what the log says.
    first = _first_to_end(known.evidence, shipped()) if result.verdict in (FAILED, BLOCKED) else ""
    return replace(result, reason="; ".join(filter(None, [first, result.reason])))


def _hang(result: Triage, ended: JobEnd) -> Triage:
    reason = f"it did not end within {ended.timeout_minutes:g} min"
    hang = replace(result, cause=TIMEOUT_HANG, verdict=FAILED, group=causes.group_of(TIMEOUT_HANG), reason=reason)
    return with_evidence(hang, FailureEvidence(TIMEOUT))


def triage(
    log: Iterable[bytes] | CandidateReader,
    exit_code: int | None = None,
    rules: Rules | None = None,
    known: JobKnowledge = JobKnowledge(),
) -> Triage:
    """The reason of a failure. `log` is the log's bytes in order, cut anywhere, or what was read of them; `exit_code`
    is the job's, if it is known: 0 makes what was printed no failure, another one a failure of what says nothing. A
    line that runs which passed have too is no reason. The exception that ended a process comes before what the log
    says."""
    if exit_code == 0:
        return Triage(NOTHING, PASSED, None, "", "", _PASSED)
    rules = rules or shipped()
    reader = log if isinstance(log, CandidateReader) else read_candidates(log, rules)
    normal = {stable(one.text) for green in known.passed for one in read_candidates(green, rules).candidates}
    candidates = CandidateList.of(reader, normal)
    if printed := _uncaught(candidates.candidates, known.evidence, rules):
        candidates = replace(candidates, candidates=printed)
    ends = bool(exit_code) or reader.failed or _shows_death(candidates, reader.died_at)
    analysis = _Analysis(ranks.rank(candidates, failed=ends), reader, rules, exit_code, known)
    if analysis.ranking.failed:
        return analysis.triage()
    return analysis.of_nothing_said() if ends else analysis.without_failure()


def _shows_death(log: CandidateList, died_at: int) -> bool:
    """Whether a process died for good: no word of success outweighs an engine's, nor a mark of failure near it or
    below it."""
    near = log.succeeded_at - _NEAR_SUCCESS
    rules = [(one.rule.name, one.last_at) for one in log.candidates if not (one.ignored or one.survived)]
    marked = any(name in _ENGINE_DEATHS or (name in _OF_TESTS and at > near) for name, at in rules)
    killed = any(name in ranks.KILLED and at >= log.lines - 1 for name, at in rules)
    return marked or killed or died_at > max(near, 0)


@dataclass(frozen=True)
class _Analysis:
    """A log with its candidates in order."""

    ranking: Ranking
    reader: CandidateReader
    rules: Rules
    exit_code: int | None
    known: JobKnowledge

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for _, candidate in self.ranking.order]

    def triage(self) -> Triage:
        chosen, rule = self.candidates[0], self.candidates[0].rule
        cause, verdict, group = self._blamed(chosen)
        only_stands_last = chosen.kind == LAST and rule is NO_RULE
        confidence = _LEAST if only_stands_last else self._confidence(verdict)
        tests = self._failed_tests()
        if confidence < _LEAST:
            verdict = FAILED if verdict == BLOCKED else verdict  # on the word of a line that is not believed
            return Triage(UNKNOWN, verdict, None, "", "", confidence, candidates=self._others(0), tests=tests)
        reason = rule.reason if rule.cause == cause else self.rules.explanations.get(cause, rule.reason)
        found = Triage(
            cause=cause, verdict=verdict, line_no=chosen.line.number, line=chosen.line.shown, text=chosen.text,
            signature="", confidence=confidence, context=(*chosen.before, chosen.line.shown, *chosen.after),
            reason=causes.NOT_SAID * only_stands_last or reason, rule=rule.name, frames=of_code(chosen.frames),
            group=group, candidates=self._others(1), tests=tests,
        )  # fmt: skip
        return with_evidence(found, evidence_of(chosen, self.reader.candidates, self.exit_code))

    def of_nothing_said(self) -> Triage:
        last, code = self.reader.last, self.exit_code
        number, shown = (last.number, last.shown) if last else (None, "")
        silent = Triage(UNKNOWN, FAILED, number, shown, "", _GUESS, reason=causes.NOT_SAID if last else "")
        return with_evidence(silent, FailureEvidence(f"exit code {code}", exit_code=code)) if code else silent

    def without_failure(self) -> Triage:
        """For a log that shows no failure: it has passed only if it says so, since a log may be cut off anywhere."""
        if not self.reader.got_through:
            return Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0, candidates=self._others(0))
        return Triage(NOTHING, PASSED, None, "", "", self._confidence(PASSED))

    def _confidence(self, verdict: str) -> float:
        features = ranks.confidence_features(self.ranking, verdict == BLOCKED)
        likely = ranks.probability(ranks.score(ranks.shipped_weights("confidence"), features))
        return round(min(_SUREST, likely), 2)

    def _failed_tests(self) -> tuple[str, ...]:
        """The tests that pytest names, each with the place of its failure if that was printed."""
        places = {}
        for one in [one for one in self.reader.candidates if one.kind == PYTEST and self.reader.failed_tests]:
            found = evidence_of(one, ())
            if found.line is not None:
                places[found.test] = f" ({found.source_path}:{found.line})"
        return tuple(f"{test}{places.get(_TEST_NAME.split(test)[-1], '')}" for test in self.reader.failed_tests)

    def _blamed(self, candidate: Candidate) -> tuple[str, str, str]:
        """(cause, verdict, group): of the environment only if no test of the code failed."""
        if (missing := _NO_MODULE.search(candidate.text)) and self.known.is_own_module(missing[1]):
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


# -- what the probe saw of the end -------------------------------------------------------------------------------------


def _uncaught(candidates: Sequence[Candidate], evidence: RunEvidence | None, rules: Rules) -> list[Candidate]:
    """The candidates that print the exception which ended a process, first; none if the log has none.

    One that only passes on what another process raised does not count. The log decides in two cases: pytest reported a
    failure, since a process that a test started may end with an exception; or the exceptions of the others may follow
    from the end of a silent rank.
    """
    if evidence is None or any(one.kind == PYTEST for one in candidates) or _silent_rank(evidence, rules) is not None:
        return []
    for _, exception in causes.uncaught_exceptions(evidence):
        printed = [one for one in candidates if any(_prints(one, link) for link in exception.chain)]
        if printed and not _follows(exception, rules, ()):
            return printed
    return []


def _first_to_end(evidence: RunEvidence | None, rules: Rules) -> str:
    """Which of several ranks ended first, as a sentence; "" if that was not seen."""
    if evidence is None or len(_ranks(evidence)) < _LEAST_RANKS:
        return ""
    if (silent := _silent_rank(evidence, rules)) is not None:
        return f"rank {silent.rank} (pid {silent.pid}) alone ended without an end mark, like a killed process"
    for process, exception in _ended_by(evidence):
        if process.rank is not None and not _follows(exception, rules, ()):
            return f"rank {process.rank} (pid {process.pid}) ended first, with {_name(exception.chain[0].type)}"
    return ""


def _silent_rank(evidence: RunEvidence, rules: Rules) -> ProcessEvidence | None:
    """The only rank that left neither an end mark nor an exception, if the exceptions of the others follow from its
    end. Several such ranks may have been killed when the job was over: then none is the first."""
    processes = _ranks(evidence)
    silent = [process for process in processes.values() if not process.end and not process.exceptions]
    own = [pair for pair in _ended_by(evidence) if not _follows(pair[1], rules, _OF_COMMUNICATION)]
    return silent[0] if len(silent) == 1 and len(processes) >= _LEAST_RANKS and not own else None


def _ranks(evidence: RunEvidence) -> dict[int, ProcessEvidence]:
    """The process of each rank: the first one in the tree, since its helpers inherit its environment. None if several
    groups of processes have the same ranks."""
    rank_of = {process.key: process.rank for process in evidence.processes}
    found: dict[int, ProcessEvidence] = {}
    for process in evidence.processes:
        if process.rank is None or rank_of.get(process.parent) == process.rank or process.end == "exec":
            continue
        if process.rank in found:
            return {}
        found[process.rank] = process
    return found


def _ended_by(evidence: RunEvidence) -> list[tuple[ProcessEvidence, NotedException]]:
    """Uncaught exceptions that ended a process, which one of a thread does not."""
    return [pair for pair in causes.uncaught_exceptions(evidence) if pair[1].where != "thread"]


def _follows(exception: NotedException, rules: Rules, consequences: Sequence[str]) -> bool:
    """Whether an exception passes on another one, or has one of the causes that the end of another process has."""
    first = exception.chain[0]
    rule = rules.of(f"{first.type.removeprefix('builtins.')}: {_message(first)}".removesuffix(": "))
    return rule.rank == WRAPPER or rule.cause in consequences


def _prints(candidate: Candidate, link: LinkedException) -> bool:
    name, _, _ = candidate.text.partition(":")
    return _name(name) == _name(link.type) and _message(link) in candidate.text


def _message(link: LinkedException) -> str:
    return next(iter(link.message.strip().splitlines()), "").strip()[:200]


def _name(type: str) -> str:
    return type.split("(")[0].rsplit(".", 1)[-1]
