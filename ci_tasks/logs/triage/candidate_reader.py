"""Gathers from the telling lines of a log what may be the reason of its failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.lines import VARYING, LineReader, segments, visible
from ci_tasks.logs.triage import log_prefixes
from ci_tasks.logs.triage.log_prefixes import PrefixedLine
from ci_tasks.logs.triage.rules import NO_RULE, NOISE, PROGRESS, ROOT, SUCCESS, SYMPTOM, WRAPPER, Rule, Rules
from ci_tasks.logs.triage.tracebacks import EXCEPTION, HEADER, TracebackEnd, TracebackFrame, Tracebacks

EXCEPTION_END, EXCEPTION_LINE, PYTEST, PLAIN, LAST = "traceback", "exception", "pytest", "line", "last"
LOUD = ("error", "critical", "fatal", "e", "f", "exception")
SILENT = ("debug", "d")
AROUND = 5  # lines of context before and after
_AFTER = 8  # a message may have several lines, and more than the words would find
_KEPT = 400  # candidates
_SURVIVED, _SURVIVED_WITHIN = "survived", 3  # a rule's name; lines
_IGNORED = "ignored-in-destructor"  # the same
_SAID_END, _LAST_WORDS = "said-end", 3  # the same
_LAST_OF_ALL = re.compile(r"(?i)\b(?:iter(?:ation)?|step|epoch)s?\W{1,20}(\d+) ?(?:/|of) ?\1\b")
# What a process does that works: it answers requests, except about its state, or continues with its steps.
_LIVES = re.compile(
    r"\"(?:GET|POST|PUT) (?!/(?:health|ping|metrics|v1/models|sleep|is_sleeping|wake_up))\S* HTTP/[\d.]+\" 2\d\d"
    r"|(?i:^\W*(?:step|iter(?:ation)?)\W{0,20}\d+\b|throughput\D{0,10}(?!0+(?:\.0+)?\b)\d)"
)
_SIGNS, _WATCHED = 2, 200  # signs of life that show that an exception was handled; lines that are read for them
_SESSION = "test session starts"
_MESSAGE = 6  # lines that an exception's message may go on for
# A whole traceback, and how often it has to come before the next is only counted: by then every rank has said it.
_PASSAGE = re.compile(
    rb"[^\n]{0,400}Traceback \(most recent call last\)[^\n]*\n"
    rb"(?:[^\n]{0,400}(?: File \"|    |\^\^)[^\n]*\n){2,200}[^\n]+\n"
)
_REPEATED = 64
_PYTEST_LINE = re.compile(r"^E {2,}(\S.*)$")
_AFTER_SUCCESS = 200  # lines after the last word of success that are the end of what succeeded
_SYNTAX = re.compile(r"(?:Syntax|Indentation|Tab)Error\b")
_PYTEST_PLACE = re.compile(r"^([\w.:\\/-]+\.py):(\d+): (?:in )?([\w.<>]+)$")
_RAISED_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Timeout|Interrupt|Iteration)(?:\([\w.]+\))?(?:: |:?$)")
_ERROR_LINE = re.compile(r"(?i)^(?:\S+ )?(?:fatal )?error\b: ?\S|(?-i:\bFAIL(?:ED|URE)?\b)|[❌✗✘]")
_ECHO = b"\x1b[36;1m"  # GitHub prints a step's script in this colour before it runs it
_SCRIPT, _END_OF_SCRIPT = "##[group]Run ", "##[endgroup]"
_GROUPS = (_SCRIPT.encode(), _END_OF_SCRIPT.encode())
_JOB_END = re.compile(r"(?:Process completed with exit code (\d+)|The operation was cancel|The job (?:was|has) )")
_OF_TRACEBACK = re.compile(r"^\s*File \"|^\s{4,}|Traceback \(most recent|^\^+$|^E  |[,{(\[]$")
_LAST, _MOST_ENDS = 10, 50  # lines before an end; ends of jobs
_FEWEST_LETTERS = 10  # of a line at the end that says something
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+\.py::.+?)(?: - .*)?$|^(\S+\.py::\S.*?) FAILED(?: |$)")
_MOST_TESTS = 200
_PROSE, _WORD = 25, re.compile(r"[\"'“‘(*]*[A-Za-z’'-]+[,.;:!?)\"'”’*]*")  # words of a line
_HOLE = re.compile(rb"^\0{16,}|\0+$")  # a log that was emptied while its job wrote on begins with a hole
# A line with other numbers may say another thing: `exit code: 0`, and `exit code: 137`.
_NUMBER_COUNTS = re.compile(rb"(?i)exit|code|status|signal|HTTP")
_VOLATILE = re.compile(r"[\d.:]+|0x[0-9a-f]+")


@dataclass
class Candidate:
    """A line that may be the reason. `order` counts those before it that are no repetition. `survived` is set if a line
    says that the process continues in spite of it, `outlived` if the process was seen to continue; `last_at` is the
    number of the latest repetition, `count` how often it came. LAST is a line that has no telling word, but is one of
    the last before the end. `calls` are its traceback's frames, outermost first, or the place of the failure that
    pytest prints; `above` is what stood before it."""

    line: PrefixedLine
    text: str
    kind: str
    rule: Rule
    order: int = 0
    type: str = ""
    chain: int = 0
    depth: float = 0
    ignored: bool = False
    survived: bool = False
    outlived: bool = False
    last_at: int = 0
    count: int = 1
    before: tuple[str, ...] = ()
    after: list[str] = field(default_factory=list)
    calls: list[TracebackFrame] = field(default_factory=list)
    above: bytes = b""

    @property
    def frames(self) -> list[str]:
        """`path:function` of each call."""
        return [f"{call.path}:{call.function}" for call in self.calls]


class CandidateReader(LineReader):
    """Feed it lines; it needs the next one while something is open."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self.words = rules, rules.words
        self._tracebacks = Tracebacks()
        self._kept: dict[tuple[str, str], Candidate] = {}
        self._wants_context: list[Candidate] = []
        self._eager = 0
        self._pytest_at = -2
        self._repeated: dict[bytes, Candidate] = {}
        self._passage = (b"", 0)
        self._message: tuple[Candidate, int] | None = None
        self._watched: list[tuple[Candidate, list[int]]] = []
        self._distinct = 0
        self._is_ours = self._is_script = False
        self.failed_tests: dict[str, None] = {}
        self.succeeded_at = self.got_on_at = self.ended_at = self.died_at = self._ends = 0
        self._step_at = self.failed_step_at = 0  # where steps begin: the last one, and the first that failed
        self.last: PrefixedLine | None = None
        self.failed = self._came_to_end = False

    @property
    def candidates(self) -> list[Candidate]:
        return list(self._kept.values())

    @property
    def got_through(self) -> bool:
        """Whether it says that it succeeded and little more, or at its end that it came there, or was at the last
        of its steps."""
        ends = self.succeeded_at and self.last is not None and self.last.number - self.succeeded_at <= _AFTER_SUCCESS
        return bool(ends) or self._came_to_end

    def needs_next_line(self) -> bool:
        return self._eager > 0 or bool(self._wants_context or self._watched) or self._tracebacks.waiting

    def feed(self, number: int, raw: bytes, before: bytes) -> bool:
        """One line of the log, with what stood before it. Returns whether lines like it have to be looked at, which
        matters only if it was not needed anyway."""
        was_needed = self.needs_next_line()
        self._eager = max(0, self._eager - 1)
        raw = _HOLE.sub(b"", raw)
        if b"\0" in raw:
            return False  # binary
        if _ECHO in raw[:60]:
            self._is_ours = self._is_script = False
            return False
        if raw.startswith(_GROUPS):  # in GitHub's logs a script has its colour, and such a group may be a program's
            self._is_script = raw.startswith(_GROUPS[0])
            self._is_ours |= number == 1 and self._is_script
            if self._is_script:
                self._begin(_SCRIPT, number)
        if self._is_ours and (self._is_script or raw.startswith(_GROUPS)):
            return True  # our own runs print a step before they run it; its lines tell something if they come later
        results = [self._read(log_prefixes.read(number, segment), before) for segment in segments(raw)]
        return was_needed or any(results) or bool(_NUMBER_COUNTS.search(raw))

    def known_passage(self, text: bytes, start: int, number: int) -> int:
        """A traceback that came again and again, with other numbers in it: servers log one a hundred thousand times."""
        passage = _PASSAGE.match(text, start)
        if passage is None:
            return 0
        shape, last = passage[0].translate(None, VARYING), number + passage[0].count(b"\n") - 1
        if known := self._repeated.get(shape):
            known.count += 1
            known.last_at, self._eager = last, _AFTER
            return len(passage[0])
        self._passage = (shape, last)
        return 0

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        """The last lines, whatever they say: whether the job got through, and what it said last."""
        read = [log_prefixes.read(number, segments(raw)[-1]) for number, raw in tail]
        said = [line for line in read if line.text.strip()]
        for line in said:
            self.last = line
            rule = self._rules.of(line.text, raised=False)
            if rule.name == _SAID_END:  # no word against what failed before it
                self._came_to_end |= line in said[-_LAST_WORDS:]
            elif rule.rank == SUCCESS:
                self.succeeded_at = line.number
            elif rule.rank == PROGRESS:
                self.got_on_at = line.number
            self._came_to_end |= bool(_LAST_OF_ALL.search(line.text))
            self._begin(line.text, line.number)
        if not self.ended_at:
            self._keep_last(read)

    def _keep_last(self, read: Sequence[PrefixedLine]) -> None:
        """The last lines before the end that no rule knows: a script's own words."""
        known = {candidate.line.number for candidate in self._kept.values()}
        said = [line for line in _without_script(read) if line.text.strip() and line.level not in SILENT]
        for line in said[-_LAST:]:
            rule = self._rules.of(line.text, raised=False)
            is_told = rule.rank in (ROOT, SYMPTOM, WRAPPER, NO_RULE.rank) and not _is_prose(line.text)
            is_known = line.number in known or _key(rule, line.text) in self._kept
            if is_told and not is_known and not _OF_TRACEBACK.search(line.text) and _is_text(line.shown):
                before = tuple(other.shown for other in read if 0 < line.number - other.number <= AROUND)
                after = [other.shown for other in read if 0 < other.number - line.number <= AROUND]
                self._kept[LAST, f"{line.number}"] = Candidate(
                    line, line.text, LAST, rule, self._distinct, before=before, after=after, last_at=line.number
                )

    def _read(self, line: PrefixedLine, before: bytes) -> bool:
        self._begin(line.text, line.number)
        for candidate in self._wants_context:
            candidate.after.append(line.shown)
        self._wants_context = [waiting for waiting in self._wants_context if len(waiting.after) < AROUND]
        if not self.died_at and self._rules.died.search(line.shown):
            self.died_at = line.number
        if self._watched:
            self._look_for_life(line)
        if HEADER in line.text and self._is_survived(line, before):
            self._tracebacks.surviving = True
        part = self._tracebacks.feed(line.origin, line.text)
        if isinstance(part, TracebackEnd):
            end = self._of_end(line, part)
            self._message = (end, line.number + _MESSAGE)
            self._keep(end, before)
        return bool(part) or self._goes_on(line, before) or self._plain(line, before)

    def _begin(self, text: str, number: int) -> None:
        """A step or tests that begin: that those before them succeeded says nothing of these."""
        self._step_at = number if text.startswith(_SCRIPT) else self._step_at
        self.succeeded_at = 0 if text.startswith(_SCRIPT) or _SESSION in text else self.succeeded_at

    def _goes_on(self, line: PrefixedLine, before: bytes) -> bool:
        """Whether the line is more of an exception's message, and says more: NCCL ends with the cause."""
        if self._message is None:
            return False
        end, until = self._message
        if end.ignored or line.number > until or line.level or line.origin != end.line.origin:
            self._message = None
            return False
        rule = self._rules.of(line.text)
        if rule.rank != ROOT or (end.rule.rank == ROOT and rule.order >= end.rule.order):
            return False
        self._keep(replace(end, line=line, text=line.text, rule=rule, depth=end.depth - 0.5, after=[]), before)
        return True

    def _of_end(self, line: PrefixedLine, end: TracebackEnd) -> Candidate:
        traceback, text = end.traceback, line.text.lstrip()
        rule = self._rules.of(text, "\n".join(traceback.frames))
        return Candidate(
            line, text, EXCEPTION_END, NO_RULE if rule.rank in (SUCCESS, PROGRESS) else rule, type=end.type,
            chain=traceback.chain, depth=traceback.depth, ignored=traceback.ignored, survived=traceback.survived,
            calls=traceback.calls,
        )  # fmt: skip

    def _plain(self, line: PrefixedLine, before: bytes) -> bool:
        text, kind = line.text, PLAIN
        if match := _PYTEST_LINE.match(text):
            text, kind = match[1], PYTEST
            follows, self._pytest_at = line.number - self._pytest_at == 1, line.number
            if text.startswith('File "') or (follows and not _SYNTAX.match(text)):
                return True  # the place of an error of syntax, which its message follows; or the rest of a message
        elif match := _PYTEST_PLACE.match(text):
            return self._place(line, TracebackFrame(match[1], int(match[2][:9]), match[3]))
        elif _RAISED_LINE.match(text.lstrip()):
            text, kind = text.lstrip(), EXCEPTION_LINE
        if kind == PLAIN and not line.level and _is_prose(text):
            return False
        if (named := _FAILED_TEST.match(text)) and len(self.failed_tests) < _MOST_TESTS:
            self.failed_tests[named[1] or named[2]] = None
        rule = self._rules.of(f"E  {text}") if kind == PYTEST else NO_RULE
        rule = self._rules.of(text, raised=kind != PLAIN or line.level in LOUD) if rule is NO_RULE else rule
        if line.level == "error" and (end := _JOB_END.match(text)):
            self._job_ended(line, end, before)
        is_loud = line.level in LOUD or _ERROR_LINE.search(text)
        if line.level in SILENT or (rule is NO_RULE and kind == PLAIN and not is_loud):
            return False
        if rule.rank in (SUCCESS, PROGRESS):
            self.succeeded_at = line.number if rule.rank == SUCCESS else self.succeeded_at
            return True
        if rule.name == _IGNORED:
            self._tracebacks.ignoring = 3
            return True
        if rule.rank == NOISE:
            return False
        exception = EXCEPTION.match(text) if kind != PLAIN else None
        candidate = Candidate(line, text, kind, rule, type=exception["type"] if exception else "")
        if rule.rank == ROOT and kind != PYTEST:
            candidate.chain = -line.number  # what follows may be more of its message
            self._message = (candidate, line.number + _MESSAGE)
        self._keep(candidate, before)
        return True

    def _job_ended(self, line: PrefixedLine, end: re.Match[str], before: bytes) -> None:
        if self._ends < _MOST_ENDS:
            above = before.split(b"\n")[:-1]
            first = line.number - len(above)
            self._keep_last([log_prefixes.read(first + at, segments(row)[-1]) for at, row in enumerate(above)])
        self.ended_at = line.number
        self._ends += 1
        if end[1] != "0" and not self.failed:
            self.failed, self.failed_step_at = True, self._step_at

    def _is_survived(self, header: PrefixedLine, before: bytes) -> bool:
        """Whether the line above a traceback says that the process continues in spite of it."""
        above = log_prefixes.read(header.number - 1, segments(before.removesuffix(b"\n").rpartition(b"\n")[2])[-1])
        return above.origin == header.origin and self._rules.of(above.text, raised=False).name == _SURVIVED

    def _look_for_life(self, line: PrefixedLine) -> None:
        """A process that answers the next requests, or continues with its steps, has handled its exception."""
        lives = bool(_LIVES.search(line.text))
        kept = []
        for candidate, signs in self._watched:
            if lives and line.origin == candidate.line.origin:
                signs.append(line.number)
            if len(signs) >= _SIGNS:
                first = candidate.line.number - 3 * len(candidate.calls) - _SURVIVED_WITHIN  # who logged it
                for one in self._kept.values():
                    if first <= one.line.number <= one.last_at <= candidate.line.number:
                        one.survived = one.outlived = True
            elif not candidate.survived and line.number - candidate.line.number < _WATCHED:
                kept.append((candidate, signs))
        self._watched = kept

    def _place(self, line: PrefixedLine, place: TracebackFrame) -> bool:
        """pytest prints where a failure was after its message. Returns whether one waited for that."""
        latest = next(reversed(self._kept.values()), None)
        if latest is None or latest.kind != PYTEST or line.number - latest.line.number >= 30:
            return False
        latest.calls = latest.calls or [place]
        return True

    def _keep(self, candidate: Candidate, before: bytes) -> None:
        if candidate.rule.rank == NOISE:
            return
        candidate.last_at, key = candidate.line.number, _key(candidate.rule, candidate.text)
        self._eager = _AFTER
        if existing := self._kept.get(key):
            self._repeat(existing, candidate)
            return
        if len(self._kept) >= _KEPT:
            self._forget()
        candidate.order = self._distinct
        if candidate.rule.rank in (ROOT, SYMPTOM, NO_RULE.rank) or candidate.kind == EXCEPTION_END:
            self._distinct += 1
        above = before.split(b"\n")[-AROUND - 1 : -1]
        candidate.above = before
        candidate.before = tuple(visible(segments(raw_line)[-1]) for raw_line in above)
        self._kept[key] = candidate
        if candidate.kind == EXCEPTION_END or candidate.line.level in LOUD:
            self._watched.append((candidate, []))
        self._wants_context.append(candidate)

    def _repeat(self, existing: Candidate, again: Candidate) -> None:
        existing.count += 1
        shape, last = self._passage
        if last == again.line.number and existing.count > _REPEATED and len(self._repeated) < _KEPT:
            self._repeated[shape] = existing
        existing.last_at, existing.survived = again.last_at, again.survived

    def _forget(self) -> None:
        """Forget one of the weakest, from the middle: what counts most is at the beginning or the end."""
        keys = [key for key, one in self._kept.items() if one.kind == PLAIN and one.rule.rank != ROOT] or [*self._kept]
        del self._kept[keys[len(keys) // 2]]


def _key(rule: Rule, text: str) -> tuple[str, str]:
    """Equal for two lines that say the same."""
    return (rule.name, _VOLATILE.sub("", text[:160]))


def _is_prose(text: str) -> bool:
    """Whether a line is of a book, or of what a model wrote: many words, no code, and hardly a number or path."""
    words = text.split()
    is_long = len(words) >= _PROSE and not set("`_={}") & set(text)
    return is_long and sum(map(bool, map(_WORD.fullmatch, words))) >= 0.9 * len(words)


def _is_text(shown: str) -> bool:
    """Whether a line has words, and is neither binary nor a progress bar."""
    letters = sum(char.isalpha() for char in shown)
    return letters >= _FEWEST_LETTERS and letters * 3 >= len(shown) and "�" not in shown


def _without_script(read: Sequence[PrefixedLine]) -> Sequence[PrefixedLine]:
    """The lines but for what GitHub's runner prints of the last step before it runs it: its script and environment. A
    group without an end is a program's."""
    begun = [at for at, line in enumerate(read) if line.text.startswith(_SCRIPT)][-1:]
    ended = [at for at, line in enumerate(read) if begun and at > begun[0] and line.text.startswith(_END_OF_SCRIPT)]
    return [*read[: begun[0]], *read[ended[0] + 1 :]] if ended else read
