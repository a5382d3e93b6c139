"""Whether two failures are one, from the evidence of each. Pure.

Failures are of one kind if exception, message and file agree. A file that one side does not name does not separate; if
the same specific statement failed in the same file, a message that differs does not either. They are the same failure
if their signatures are equal too, and both show something beyond the kind:

    statement          not if it only ran a program (CalledProcessError), which may fail for many reasons
    line               in one tree, if the logs do not show the statement
    metric, weights, status code, path
    signal             a crash of the program's own: SIGKILL and SIGTERM come from outside
    exit code          from 3 on, without a signal
    message            as printed, if nothing in it varies, it has words of its own, and no statement is known

If several tests failed in CI, and the one that fails here is another one of them, they are of one kind.
A test counts if both sides name one: other parameters of it, or another test that calls the same function, may fail for
another reason. A function is no evidence: one function has several checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.triage.signature import is_specific, stable
from ci_tasks.records import FailureEvidence, Triage
from ci_tasks.trials.rules import DIFFERENT_FAILURE, REPRODUCED, SAME_KIND

_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP")
_LEAST_EXIT_CODE = 3  # 1 and 2 are any program's
_LEAST_WORDS = 3
_WORD = re.compile(r"[A-Za-z_]{3,}")
_QUOTED_NAME = re.compile(r"""^['"][\w./-]{2,}['"]$|named ['"][\w.]+['"]""")
_NAMES = {"source_line": "statement", "parameters": "weights", "http_status": "status code", "exit_code": "exit code"}


@dataclass(frozen=True)
class FailureDifference:
    """What differs, as each side has it."""

    what: str
    ci: str
    here: str

    def __str__(self) -> str:
        return f"{self.what}: CI {self.ci or 'none'}; here {self.here or 'none'}"


@dataclass(frozen=True)
class Comparison:
    """`outcome` is REPRODUCED, SAME_KIND or DIFFERENT_FAILURE; `same` is the evidence that is equal beyond the kind."""

    outcome: str
    same: tuple[str, ...] = ()
    differs: tuple[FailureDifference, ...] = ()


def compare(ci: Triage, here: Triage, *, same_tree: bool = False) -> Comparison:
    """CI's failure and one here; `same_tree`: both ran the same commit."""
    mine, other = ci.evidence, here.evidence
    if mine is None or other is None:
        alike = bool(ci.signature) and ci.signature == here.signature
        difference = FailureDifference("failure", ci.text or ci.line, here.text or here.line)
        return Comparison(SAME_KIND) if alike else Comparison(DIFFERENT_FAILURE, (), (difference,))
    same, differs = tuple(_shown(ci, here, same_tree)), tuple(_differences(mine, other))
    same_statement = is_specific(mine.source_line) and mine.source_line == other.source_line and mine.file == other.file
    same_message = mine.message == other.message or same_statement
    if mine.exception != other.exception or not same_message or _differ(mine.file, other.file):
        theirs, ours = ([test.partition(" (")[0].rpartition("::")[2] for test in each.tests] for each in (ci, here))
        if _differ(mine.test, other.test) and other.test.rpartition(".")[2] in theirs:
            tests = FailureDifference("failed tests", ", ".join(theirs), ", ".join(ours))
            return Comparison(SAME_KIND, (), (tests,))
        return Comparison(DIFFERENT_FAILURE, (), differs)
    if same and ci.signature == here.signature and not _other_test(mine, other):
        return Comparison(REPRODUCED, same)
    return Comparison(SAME_KIND, (), differs)


def _differ(ci: object, here: object) -> bool:
    return bool(ci and here and ci != here)


def _differences(ci: FailureEvidence, here: FailureEvidence) -> Iterator[FailureDifference]:
    """A line is not compared: an edit above moves it; and a path is another one on each machine."""
    for name in (field.name for field in fields(FailureEvidence) if field.name not in ("line", "source_path")):
        a, b = (getattr(side, name) for side in (ci, here))
        if a != b and (_differ(a, b) or name in ("exception", "message")):
            texts = (", ".join(value) if isinstance(value, tuple) else str(value) for value in (a, b))
            yield FailureDifference(_NAMES.get(name, name), *texts)


def _other_test(ci: FailureEvidence, here: FailureEvidence) -> bool:
    """A test that was renamed around the same specific statement of its own is not another one."""
    a, b = (side.test.partition("[")[0].rpartition(".")[2] for side in (ci, here))
    renamed = is_specific(ci.source_line) and a != b and (ci.function, here.function) in ((a, b), ("", ""))
    return _differ(ci.test, here.test) and not renamed


def _shown(ci: Triage, here: Triage, same_tree: bool) -> Iterator[str]:
    """The evidence beyond the kind, of failures whose signatures are equal."""
    mine, other = ci.evidence, here.evidence
    assert mine is not None and other is not None
    if not mine.command:
        if mine.source_line:
            yield f"statement {mine.source_line}"
        elif same_tree and mine.file and mine.line is not None and mine.line == other.line:
            yield f"line {mine.line} of {mine.file}"
        for what, value in (("metric", mine.metric), ("status code", mine.http_status), ("path", mine.path)):
            if value:
                yield f"{what} {value}"
        if mine.parameters:
            yield f"weights {', '.join(mine.parameters[:3])}"
        if not mine.source_line and _says_enough(ci, here):
            yield f"message {mine.message}"
    if mine.signal in _CRASHES:
        yield f"signal {mine.signal}"
    if (mine.exit_code or 0) >= _LEAST_EXIT_CODE and not mine.signal:
        yield f"exit code {mine.exit_code}"


def _says_enough(ci: Triage, here: Triage) -> bool:
    """Whether the message, as it was printed, is equal, has nothing that varies, and says something."""
    a, b = (_message(triage) for triage in (ci, here))
    if a != b or stable(a) != a:
        return False
    return len(set(_WORD.findall(a))) >= _LEAST_WORDS or bool(_QUOTED_NAME.search(a))


def _message(triage: Triage) -> str:
    """The message without the exception's type, which may have its module on one side alone."""
    head, colon, rest = triage.text.partition(": ")
    has_type = colon and re.fullmatch(r"[\w.]+(?:\([\w.]+\))?", head)
    return " ".join((rest if has_type else triage.text).split())
