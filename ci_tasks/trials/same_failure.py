"""Whether two failures are one, from the evidence of each. Pure.

Failures are of one kind if exception, message and file agree. A file that one side does not name does not separate;
where the same specific statement failed in the same file, a message that differs does not make another kind either.

Of one kind, they are the same failure if at least one piece of evidence is shown to be equal and none contradicts:

    evidence                  equal counts                             different counts
    statement                 if it is specific, or in one function    always
    command of a program      never                                    always
    function                  never                                    unless the same specific statement failed
    test                      never                                    always, if both are parameters of one test, or
                                                                       the statement is in a function that they call;
                                                                       else as a function
    path of the code          never                                    if the two are below one directory: two files of
                                                                       one tree with one name
    metric, path, status      always                                   always
    direction, number         never                                    always
    weights and layers        always                                   if they have none in common
    signal                    if a crash of the program's own          always
    exit code                 from 3 on, and no signal                 always
    message as printed        if nothing in it varies, it has words    never: the kind has it without what varies
                              of its own, and no statement is known
                              on both sides

Of a statement that only ran a program (CalledProcessError) no more than the program's signal or exit code counts as
equal. A function is no evidence: one function has several checks. What one side does not show is neither equal nor
different. SIGKILL and SIGTERM come from outside, so that two runs that were killed are alike and no more.
"""

from __future__ import annotations

import re

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.triage.signature import ROOTS, SCRATCH, is_specific, stable
from ci_tasks.records import FailureEvidence, Triage

SAME, ALIKE, DIFFERENT = "same", "alike", "different"
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP")
_LEAST_EXIT_CODE = 3  # 1 and 2 are any program's
_LEAST_WORDS = 3
_LEAST_PARTS = 2
_WORD = re.compile(r"[A-Za-z_]{3,}")
_QUOTED_NAME = re.compile(r"""^['"][\w./-]{2,}['"]$|named ['"][\w.]+['"]""")
_COUNTS = ("metric", "weights", "status code", "path")
_PARAMETERS = re.compile(r"\[.*\]$")


@dataclass(frozen=True)
class Difference:
    """What differs, as each side has it."""

    what: str
    ci: str
    here: str

    def __str__(self) -> str:
        return f"{self.what}: CI {self.ci or 'none'}; here {self.here or 'none'}"


@dataclass(frozen=True)
class Comparison:
    """`outcome` is SAME, ALIKE or DIFFERENT; `same` is the evidence that is equal beyond the kind."""

    outcome: str
    same: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()


def compare(ci: Triage, here: Triage, *, same_tree: bool = False) -> Comparison:
    """CI's failure and one here. In the same tree one line of one file is one statement, if the logs do not show all of
    it."""
    if ci.evidence is None or here.evidence is None:
        alike = bool(ci.signature) and ci.signature == here.signature
        difference = Difference("failure", ci.text or ci.line, here.text or here.line)
        return Comparison(ALIKE) if alike else Comparison(DIFFERENT, (), (difference,))
    pair = _Pair(ci.evidence, here.evidence, same_tree)
    kind = _kind_differences(pair)
    evidence = _evidence_differences(pair)
    message_only = all(difference.what == "message" for difference in kind)
    if kind and not (message_only and pair.same_specific_statement):
        return Comparison(DIFFERENT, (), (*kind, *evidence))
    same = tuple(_equal(pair, ci, here))
    differs = (*kind, *evidence)
    return Comparison(SAME if same and not differs else ALIKE, same, differs)


@dataclass(frozen=True)
class _Pair:
    ci: FailureEvidence
    here: FailureEvidence
    same_tree: bool

    @property
    def same_place(self) -> bool:
        is_known = self.same_tree and self.ci.line is not None and bool(self.ci.file)
        return is_known and (self.ci.file, self.ci.line) == (self.here.file, self.here.line)

    @property
    def same_statement(self) -> bool:
        return self.same_place or (bool(self.ci.source_line) and _same_code(self.ci.source_line, self.here.source_line))

    @property
    def same_specific_statement(self) -> bool:
        shorter = min(self.ci.source_line, self.here.source_line, key=len)
        return self.same_statement and is_specific(shorter) and self.ci.file == self.here.file


def _kind_differences(pair: _Pair) -> list[Difference]:
    ci, here = pair.ci, pair.here
    parts = [("exception", ci.exception, here.exception), ("message", ci.message, here.message)]
    if ci.file and here.file:
        parts.append(("file", ci.file, here.file))
    return [Difference(what, a, b) for what, a, b in parts if a != b]


def _texts(side: FailureEvidence) -> dict[str, str]:
    """What is compared, by its name; "" if it was not seen."""
    return {
        "path of the code": side.source_path,
        "statement": side.source_line,
        "function": side.function,
        "test": side.test,
        "weights": ", ".join(side.parameters),
        "metric": side.metric,
        "direction": side.direction,
        "status code": str(side.http_status or ""),
        "path": side.path,
        "signal": side.signal,
        "command": side.command,
        "number": side.number,
        "exit code": "" if side.exit_code is None else str(side.exit_code),
    }


def _evidence_differences(pair: _Pair) -> list[Difference]:
    ci, here = _texts(pair.ci), _texts(pair.here)
    tolerated = {
        "path of the code": not _other_file(pair.ci.source_path, pair.here.source_path),
        "statement": pair.same_statement,
        "function": pair.same_specific_statement,
        "test": not _other_test(pair),
        "weights": bool({*pair.ci.parameters} & {*pair.here.parameters}),
    }
    names = [what for what in ci if ci[what] and here[what] and ci[what] != here[what] and not tolerated.get(what)]
    return [Difference(what, ci[what], here[what]) for what in names]


def _other_test(pair: _Pair) -> bool:
    """Another test, or other parameters of it. A test that was renamed around the same specific statement is not."""
    ci, here = pair.ci.test, pair.here.test
    if ci == here:
        return False
    if _PARAMETERS.sub("", ci) == _PARAMETERS.sub("", here):
        return ci.endswith("]") and here.endswith("]")
    return not pair.same_specific_statement or any(map(_is_in_helper, (pair.ci, pair.here)))


def _is_in_helper(side: FailureEvidence) -> bool:
    """Whether the statement is in a function that the test calls, as other tests may."""
    own = _PARAMETERS.sub("", side.test).rsplit(".", 1)[-1]
    return bool(side.function) and side.function != own


def _other_file(ci: str, here: str) -> bool:
    """Whether two paths are of two files of one tree: below one directory they go apart. `/root/slime/a.py` and
    `/home/me/slime/a.py` may be one file in two checkouts."""
    a, b = ([part for part in path.replace("\\", "/").split("/") if part] for path in (ci, here))
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if min(len(a), len(b)) < _LEAST_PARTS or a[-2] != b[-2] or a[-2] in ROOTS:
        return False
    return not (SCRATCH.match(a[-1]) or SCRATCH.match(b[-1]))


def _equal(pair: _Pair, ci: Triage, here: Triage) -> list[str]:
    """The evidence that counts and is equal. Where a statement only ran a program, that is how the program ended."""
    mine, other = pair.ci, pair.here
    # A statement that only ran a program may fail for many reasons.
    found = [] if mine.command or other.command else _equal_in_code(pair, ci, here)
    if mine.signal in _CRASHES and mine.signal == other.signal:
        found.append(f"signal {mine.signal}")
    if (mine.exit_code or 0) >= _LEAST_EXIT_CODE and mine.exit_code == other.exit_code and not mine.signal:
        found.append(f"exit code {mine.exit_code}")
    return found


def _equal_in_code(pair: _Pair, ci: Triage, here: Triage) -> list[str]:
    """What the code under test says of its failure, as far as it is equal."""
    mine, other = pair.ci, pair.here
    found = []
    same_function = any(a and a == b for a, b in ((mine.function, other.function), (mine.test, other.test)))
    if pair.same_place or (pair.same_statement and (pair.same_specific_statement or same_function)):
        found.append(f"statement {mine.source_line or f'at {mine.file}:{mine.line}'}")
    texts, others = _texts(mine), _texts(other)
    found += [f"{what} {texts[what]}" for what in _COUNTS if texts[what] and texts[what] == others[what]]
    if not (mine.source_line and other.source_line) and _says_enough(ci, here):
        found.append(f"message {mine.message}")
    return found


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


def _same_code(ci: str, here: str) -> bool:
    """Equal but for spaces; of a statement over several lines one side may have the first alone."""
    a, b = ("".join(code.split()) for code in (ci, here))
    short, long = sorted((a, b), key=len)
    return a == b or (bool(short) and _is_open(short) and long.startswith(short))


def _is_open(code: str) -> bool:
    return sum(code.count(bracket) for bracket in "([{") > sum(code.count(bracket) for bracket in ")]}")
