"""Evidence over exit codes: what a run's end means.

end, exit code     evidence                          status
runner gone        any                               lost
cancelled          any                               cancelled
error              any                               blocked     (the job could not be started)
any                the log could not be written      blocked     (whatever it lacks could be the reason)
timeout            docker was still pulling          blocked
137, 143           the docker daemon had gone        blocked
timeout            any                               failed
125, 126, 127      the adapter's blocked line        blocked
125                docker's own error                blocked
126                podman's error about a device     blocked
not 0              srun knows an option not, and     blocked
                   no test was seen
not 0              a triage that blames the          blocked
                   environment, unless tests
                   passed and one failed otherwise
not 0              any                               failed
0                  a test that failed                failed      (the exit code lies)
0                  tests ran                         passed
0                  every test was skipped, or none   vacuous
                   was collected
0                  the plan takes GPUs under a       vacuous
                   lock, and none was taken
0                  metrics                           passed
0                  the file defines tests, and       vacuous
                   none was seen
0                  a script without tests            passed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from xml.parsers import expat

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.causes import NOT_SAID, JobEnd
from ci_tasks.logs.reading import LogFacts
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, PASSED, VACUOUS, Evidence, RunRecord, Triage, Verdict

_DOCKERS_CODE = 125
_NO_TESTS_CODES = (4, 5)  # pytest.ExitCode.USAGE_ERROR: no such file or test; NO_TESTS_COLLECTED: all deselected, too
_PODMANS_CODE = 126  # also of a command that cannot be executed, which is the job's own fault
_DEVICE = "CDI devices"
_ADAPTERS_CODES = (125, 126, 127)  # the last two for a program that is missing on a host without containers
_DOCKERS_RULES = ("image-pull", "docker-says")
_SAME = 60  # characters by which a line is found in what a test says
_KILLED = ("killed-by-shell", "killed-child")  # rules of lines that only report it
_EXECUTED = ("passed", "xfailed", "xpassed", "failed", "error")
_FAILED = ("failed", "error")
_NO_TEST = ("script", "none", "set-up")
_FAULTS = ("failure", "error")
_LONGEST_NAME = 255  # bytes of a file's name
_PLACE = re.compile(r" \([^()]*:\d+\)$")  # that triage writes behind a test


def collect_evidence(junit: Junit | None, log: LogFacts, *, defines_tests: bool, takes_locks: bool) -> Evidence:
    """What shows that the row did something. `defines_tests` is of its test file, `takes_locks` of its plan.

    A script that calls pytest several times keeps the last call's JUnit file only; the log has the counts of all.
    """
    candidates = []
    first = junit.first if junit is not None else ""
    if junit is not None:
        candidates.append(Evidence("junit", junit.executed, junit.failures, junit.skipped, log.metrics, first))
    if log.pytest is not None:
        executed, failed = (sum(log.pytest.get(word, 0) for word in outcomes) for outcomes in (_EXECUTED, _FAILED))
        candidates.append(Evidence("pytest", executed, failed, log.pytest.get("skipped", 0), log.metrics, first))
    if candidates:
        most = max(candidates, key=lambda evidence: evidence.tests + evidence.skipped)  # of equals the first
        return replace(most, failures=max(most.failures, log.pytest_failed) + log.unittest_failed)
    if log.unittest is not None:
        executed = max(0, log.unittest - log.unittest_skipped)
        return Evidence("unittest", executed, log.unittest_failed, log.unittest_skipped, log.metrics)
    if takes_locks and not log.gpu_ids:
        return Evidence("set-up", steps=log.metrics)
    if log.metrics:
        return Evidence("metrics", steps=log.metrics)
    return Evidence("none" if defines_tests else "script", failures=log.pytest_failed)


def needs_triage(ended: JobEnd) -> bool:
    """Whether the log's reason for a failure matters: the job ran, and did not get through."""
    return ended.end in ("exit", "timeout") and ended.exit_code != 0 and not ended.log_error


def judge(
    ended: JobEnd,
    evidence: Evidence,
    log: LogFacts,
    *,
    test: str | None,
    containers: bool,
    triage: Triage | None = None,
) -> Verdict:
    """The row's status and its reason. `triage` is what the log says of a failure."""
    if ended.end is None:
        return Verdict(LOST, ended.error or "the runner vanished before the job ended", evidence)
    if ended.end == "cancelled":
        return Verdict(CANCELLED, ended.error or "cancelled", evidence)
    if ended.end == "error":
        return Verdict(BLOCKED, f"the job could not be started: {ended.error}", evidence)
    if ended.log_error:
        return Verdict(BLOCKED, ended.log_error, evidence)
    if ended.cut and not evidence.failures:
        return Verdict(BLOCKED, ended.cut, evidence)
    if ended.end == "timeout":
        reason = ended.error or f"timeout after {ended.timeout_minutes:g} min"
        return _at_last_line(FAILED, reason, evidence, log)
    if ended.exit_code in _ADAPTERS_CODES and log.blocked:
        return Verdict(BLOCKED, log.blocked, evidence)
    is_daemons = ended.exit_code == _DOCKERS_CODE or (ended.exit_code == _PODMANS_CODE and _DEVICE in log.daemon)
    if is_daemons and containers and log.daemon:
        return Verdict(BLOCKED, log.daemon, evidence)
    if ended.exit_code != 0 and log.srun and evidence.kind in _NO_TEST:
        return Verdict(BLOCKED, log.srun, evidence)
    if ended.exit_code != 0:
        return _failed(ended, evidence, log, triage, containers)
    return _green(evidence, test)


def _failed(ended: JobEnd, evidence: Evidence, log: LogFacts, triage: Triage | None, containers: bool) -> Verdict:
    if triage and _environment(triage, ended, evidence, containers) and not _failed_otherwise(evidence, triage):
        return Verdict(BLOCKED, triage.text, evidence, triage.line_no)
    if ended.exit_code in _NO_TESTS_CODES and evidence.kind in ("junit", "pytest") and not evidence.tests:
        return _at_last_line(FAILED, "pytest found no test to run (--test may name none)", evidence, log)
    said = triage.text if triage is not None and not triage.reason.endswith(NOT_SAID) else ""
    if text := evidence.detail or said:
        return Verdict(FAILED, text, evidence, triage.line_no if triage is not None else None)
    return _at_last_line(FAILED, f"exit code {ended.exit_code}", evidence, log)


def _environment(triage: Triage, ended: JobEnd, evidence: Evidence, containers: bool) -> bool:
    """Whether the log is right to blame the environment: docker cannot have stopped a row that never called it, and
    that a process was killed does not say by whom. How sure it has to be is measured, see the triage's weights. Without
    a container, a program that a shell does not find (127) before any test is one that CI's machine has."""
    never = _KILLED if containers else (*_KILLED, *_DOCKERS_RULES)
    is_program = ended.exit_code == 127 and evidence.kind in _NO_TEST and triage.text.endswith("not found")
    return (is_program and not containers) or (triage.verdict == BLOCKED and triage.rule not in never)


def _failed_otherwise(evidence: Evidence, triage: Triage) -> bool:
    """Whether tests ran, and the first one that failed says something else than the line that blames the environment: a
    warning at import, say, after which hundreds of tests passed."""
    if not evidence.failures or not evidence.detail or evidence.tests == evidence.failures:
        return False
    message = triage.text.rpartition("Error: ")[2] or triage.text
    return " ".join(message.split())[:_SAME] not in " ".join(evidence.detail.split())


def _at_last_line(status: str, reason: str, evidence: Evidence, log: LogFacts) -> Verdict:
    if log.last_line is None:
        return Verdict(status, f"{reason}, no output", evidence)
    number, line = log.last_line
    return Verdict(status, f"{reason}; last line: {line}", evidence, number)


def _green(evidence: Evidence, test: str | None) -> Verdict:
    if evidence.failures:
        return Verdict(FAILED, f"exit code 0, but {evidence.detail or f'failed tests: {evidence.failures}'}", evidence)
    if evidence.kind == "set-up":
        return Verdict(VACUOUS, "nothing ran: the row takes GPUs under a lock, and took none", evidence)
    if evidence.kind == "none":
        return Verdict(VACUOUS, f"nothing ran: {test} defines tests, and none of them ran", evidence)
    if evidence.kind in ("junit", "pytest", "unittest") and not evidence.tests:
        skipped = f"all {evidence.skipped} tests skipped" if evidence.skipped else "no test was collected"
        return Verdict(VACUOUS, f"nothing ran: {skipped}", evidence)
    return Verdict(PASSED, "", evidence)


def ended_as(record: RunRecord, status: str, reason: str) -> RunRecord:
    """The record with another end, of its last attempt too."""
    attempts = (*record.attempts[:-1], replace(record.attempts[-1], status=status, reason=reason))
    return replace(record, status=status, reason=reason, attempts=attempts)


# -- JUnit XML as pytest writes it: counts and the first failure -------------------------------------------------------


@dataclass(frozen=True)
class Junit:
    """`tests` counts what was collected, skipped ones included; `first` is the first failure's name and message.

    An expected failure was executed; pytest writes it as a kind of skip."""

    tests: int
    failures: int
    skipped: int
    first: str = ""

    @property
    def executed(self) -> int:
        return self.tests - self.skipped


def read_junit(pieces: Iterable[bytes]) -> Junit | None:
    """The counts of a JUnit file, read as a stream; None for a file that is not one: a run that was killed leaves half
    of it."""
    counts = _parsed(pieces, lambda *_: None)
    return None if counts is None else Junit(counts.tests, counts.failures, counts.skipped, counts.first)


def missed_tests(junit: Iterable[bytes], tests: Sequence[str], log: Iterable[bytes]) -> list[str]:
    """Those of `tests`, as `triage` names them, that did not run and pass by a JUnit file that has others of their
    modules: skipped, expected to fail, deselected, or not there. Of another module, whose file the log does not name
    either, none ran. (Of several calls of pytest the last one's JUnit file is there.)"""
    seen: dict[str, bool] = {}

    def look(modules: list[str], name: str, passed: bool) -> None:
        for test in tests:
            path, bracket, parameters = _PLACE.sub("", test).partition("[")
            if _file_of(path) in modules:
                is_it = path.rpartition("::")[2] + bracket + parameters == name
                seen[test] = seen.get(test, False) or (is_it and passed)

    if _parsed(junit, look) is None:
        seen.clear()
    unseen = {test: _file_of(test) for test in tests if ".py" in test and test not in seen}
    end = b""
    for piece in log:
        unseen = {test: file for test, file in unseen.items() if f"{file}.py".encode() not in end + piece}
        end = piece[-_LONGEST_NAME:]
    return [_PLACE.sub("", test) for test in tests if test in unseen or not seen.get(test, True)]


def _file_of(test: str) -> str:
    return test.partition(".py")[0].rpartition("/")[2]


def _parsed(pieces: Iterable[bytes], look: Callable[[list[str], str, bool], None]) -> _Counts | None:
    counts = _Counts(look)
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse  # pytest writes none; an entity bomb needs one
    parser.StartElementHandler, parser.EndElementHandler = counts.begin, counts.end
    try:
        for piece in pieces:
            if b"\0" in piece:  # UTF-16
                return None
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError):  # the last two for unknown encodings
        return None
    return counts


def _refuse(*_declaration: object) -> None:
    raise ValueError("a document type")


class _Counts:
    """`inside` are the elements that are open, `faults` what lies directly below the test case: its failure's or
    error's first line. `look` gets the parts of each test's class name, its name, and whether it ran and passed."""

    def __init__(self, look: Callable[[list[str], str, bool], None]) -> None:
        self._look = look
        self.tests = self.failures = self.skipped = 0
        self.first = ""
        self._inside: list[str] = []
        self._name = ""
        self._faults: dict[str, str] = {}
        self._is_skipped = False

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "testcase":
            self._name, self._faults, self._is_skipped = str(attributes.get("name")), {}, False
            self._modules, self._is_odd = attributes.get("classname", "").split("."), False
        elif self._inside[-1:] == ["testcase"]:
            if tag in _FAULTS:
                self._faults.setdefault(tag, next(iter(attributes.get("message", "").splitlines()), "failed"))
            is_run = attributes.get("type") == "pytest.xfail" and "[NOTRUN]" not in attributes.get("message", "")
            self._is_odd |= tag == "skipped"
            self._is_skipped |= tag == "skipped" and not is_run
        self._inside.append(tag)

    def end(self, tag: str) -> None:
        self._inside.pop()
        if tag == "testcase":
            self.tests += 1
            self.skipped += self._is_skipped
            self._look(self._modules, self._name, not (self._faults or self._is_odd))
            if self._faults:
                said = self._faults.get("failure") or self._faults["error"]
                self.first = self.first or f"{self._name}: {said}"
                self.failures += 1
