"""What speaks for and against a candidate, as named numbers: how it was printed, where it stands, what its rule and its
traceback say of it, and which words it has. `weights.json` has what each is worth, `bench/triage_train.py` learns it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import cache

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.triage.candidate_reader import (
    EXCEPTION_END,
    EXCEPTION_LINE,
    LAST,
    PLAIN,
    PYTEST,
    Candidate,
    CandidateReader,
)
from ci_tasks.logs.triage.rules import ROOT, SYMPTOM, WRAPPER

_LONGEST = 400  # characters that count; a line of settings or of a model's output has thousands
_URL = re.compile(r"\b[a-z][a-z0-9+]{1,10}://[^\s'\"<>)\]]+")
_PATH = re.compile(r"(?<![\w.])(?:~|\.{1,2})?(?:/[\w.@+~=:-]+)+/?|\b[A-Z]:\\[^\s'\"]+|\b(?:[\w.-]+/){2,}[\w.-]+")
_ID = re.compile(r"\b(?:0x)?(?=[a-f-]*\d)[0-9a-f][0-9a-f-]{6,}\b", re.I)
_NUMBER = re.compile(r"[-+]?\d[\d.,:]*(?:e[-+]?\d+)?", re.I)
_LIST = re.compile(r"#(?:[\s,;x/|-]*#)+")
_BAR = re.compile(r"[█▉▊▋▌▍▎▏#=*_.~-]{3,}|[█▉▊▋▌▍▎▏]+")
_SPACE = re.compile(r"\s+")
FILE = "logs/triage/noise_templates.txt"
Features = dict[str, float]
_CONTROL_FLOW = ("StopIteration", "StopAsyncIteration", "queue.Empty", "_queue.Empty")  # how loops and queues end
_QUIET = ("info", "debug", "i", "d", "notice")
_WARNING = ("warning", "warn", "w")
_LOUD = ("error", "critical", "fatal", "e", "f", "exception")
_WORD = re.compile(r"[A-Za-z][A-Za-z]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MOST_WORDS = 40
_MARKDOWN = re.compile(r"^(?:[-*>|] |#+ |\d+\. |```)|\*\*\w|\]\(|(?:^|\s)`[^`]+`| \|$")
_PACKAGE = re.compile(r"site-packages|dist-packages|/lib/python\d|<frozen|<string>")
_END = 5  # lines
_LONG_GONE = 30  # the same
_SHORTEST_MESSAGE, _LONGEST_MESSAGE = 15, 60  # characters that tell two messages apart
_RAISED = (EXCEPTION_END, EXCEPTION_LINE, PYTEST)
_ENDS = ("killed-by-shell", "killed-child", "launcher", "job-timeout", "cancelled", "slurm-cancelled")  # of rules
_LONG_LOG = 200  # lines; shorter ones are excerpts, in which the end says less


def masked(text: str) -> str:
    """The template of a line: equal for two lines that differ only in numbers, ids, paths, addresses and spaces."""
    text = _URL.sub("<url>", text[:_LONGEST])
    text = _PATH.sub("<path>", text)
    text = _ID.sub("#", text)
    text = _NUMBER.sub("#", text)
    text = _LIST.sub("#", text)
    text = _BAR.sub("…", text)
    return _SPACE.sub(" ", text).strip()


def is_noise(masked_line: str) -> bool:
    """Whether runs that pass have the line too. It takes a template, see `line_template.masked`."""
    return masked_line in _templates()


@cache
def _templates() -> frozenset[str]:
    """Read when first asked for: most commands never triage. The header ends with the first empty line."""
    _, _, table = resources.text(FILE).partition("\n\n")
    return frozenset(table.splitlines())


@dataclass(frozen=True)
class CandidateList:
    """The candidates of one log, in the order of their lines, and what is known of all of it. `consequences` came after
    the first process had died."""

    candidates: Sequence[Candidate]
    lines: int
    succeeded_at: int
    got_on_at: int
    consequences: Sequence[Candidate] = ()

    @classmethod
    def of(cls, reader: CandidateReader, normal: Set[str] = frozenset()) -> CandidateList:
        """Without the lines whose templates are `normal`, and without those that frameworks print in runs that pass."""
        kept = [candidate for candidate in reader.candidates if not _is_normal(candidate, normal)]
        kept.sort(key=lambda candidate: candidate.line.number)
        lines = max([reader.last.number if reader.last else 0, *(candidate.line.number for candidate in kept)])
        before = [candidate for candidate in kept if candidate.line.number <= reader.died_at]
        if any(_tells(candidate) for candidate in before):
            lines, kept, after = reader.died_at, before, kept[len(before) :]
        else:
            after = []
        for candidate in kept:
            if (after or lines > _LONG_LOG) and _is_long_gone(candidate, lines):
                assert candidate.rule is not None
                candidate.rule = replace(candidate.rule, rank=SYMPTOM)
        return cls(kept, lines, reader.succeeded_at, reader.got_on_at, after)

    @property
    def last_said(self) -> Candidate | None:
        """The last of the lines that only stand at the end."""
        return next((one for one in reversed(self.candidates) if one.kind == LAST), None)


def _is_long_gone(candidate: Candidate, died_at: int) -> bool:
    """Whether a line that was neither raised nor logged as an error was followed by much else: the job went on."""
    return (
        candidate.kind == PLAIN
        and candidate.line.level not in _LOUD
        and rank_of(candidate) == ROOT
        and died_at - candidate.last_at > _LONG_GONE
    )


def _tells(candidate: Candidate) -> bool:
    """Whether a line says more than that something ended."""
    return rank_of(candidate) != WRAPPER and candidate.kind != LAST and not (candidate.ignored or candidate.survived)


def _is_normal(candidate: Candidate, normal: Set[str]) -> bool:
    template = masked(candidate.text)
    return template in normal or (candidate.kind not in (EXCEPTION_END, PYTEST) and is_noise(template))


def rank_of(candidate: Candidate) -> str:
    """What its rule makes of it, `none` where no rule knows it."""
    return candidate.rule.rank if candidate.rule else "none"


def words(text: str) -> Iterator[str]:
    """The words of a line, those of a compound name too, in lower case."""
    for number, word in enumerate(_WORD.findall(text)):
        if number >= _MOST_WORDS:
            return
        yield word.lower()
        parts = _CAMEL.split(word)
        if len(parts) > 1:
            yield from (part.lower() for part in parts if len(part) > 1)


def features(log: CandidateList) -> list[Features]:
    """Those of each candidate of a log."""
    ends = [candidate for candidate in log.candidates if candidate.kind == EXCEPTION_END and not candidate.ignored]
    roots = [candidate for candidate in log.candidates if rank_of(candidate) == ROOT and not candidate.ignored]
    passing_on = [candidate.line.number for candidate in log.candidates if rank_of(candidate) == WRAPPER]
    chains: dict[int, list[Candidate]] = {}
    for candidate in ends:
        chains.setdefault(candidate.chain, []).append(candidate)
    return [
        _how(candidate)
        | _where(candidate, log, ends, roots, passing_on)
        | _chain(candidate, chains.get(candidate.chain, []) if candidate.chain else [])
        | _echo(candidate, log)
        | _words(candidate)
        for candidate in log.candidates
    ]


def _how(candidate: Candidate) -> Features:
    rank, level = rank_of(candidate), candidate.line.level
    loudness = (
        "warning" if level in _WARNING else "quiet" if level in _QUIET else "loud" if level in _LOUD else "not said"
    )
    found: Features = {
        f"kind {candidate.kind}": 1,
        f"rank {rank}": 1,
        f"{rank} as {candidate.kind}": 1,
        f"level {loudness}": 1,
        f"level {loudness} of {candidate.kind}": 1,
        "survived": candidate.survived,
        "ignored": candidate.ignored,
        "ends a loop": candidate.type in _CONTROL_FLOW,
        "repeated": math.log1p(candidate.count - 1),
        "said by many": math.log1p(len(candidate.origins) - 1) if candidate.origins else 0,
        "line of markdown": bool(_MARKDOWN.search(candidate.text)),
        "short": len(candidate.text) < 25,
        "long": len(candidate.text) > 300,
        "says no more than its type": bool(candidate.type) and candidate.text.rstrip(": ") == candidate.type,
    }
    if candidate.rule is not None:
        found[f"rule {candidate.rule.name}"] = 1
        found["wrapper with a cause"] = rank == WRAPPER and bool(candidate.rule.cause)
    if candidate.frames:
        found["innermost frame is of a package"] = bool(_PACKAGE.search(candidate.frames[-1]))
        found["frames of a package only"] = all(_PACKAGE.search(frame) for frame in candidate.frames)
    return found


def _where(
    candidate: Candidate,
    log: CandidateList,
    ends: Sequence[Candidate],
    roots: Sequence[Candidate],
    passing_on: Sequence[int],
) -> Features:
    number, is_long = candidate.line.number, log.lines > _LONG_LOG
    after = [other - number for other in passing_on if other > number]
    size = "long log" if is_long else "excerpt"
    is_plain = candidate.kind not in (EXCEPTION_END, EXCEPTION_LINE, PYTEST)
    return {
        "order": min(candidate.order, 10) / 10,
        "first of all": candidate.order == 0 and rank_of(candidate) != WRAPPER,
        "first root": bool(roots) and candidate is roots[0],
        "a root stands elsewhere": bool(roots) and candidate not in roots,
        "first traceback": bool(ends) and candidate is ends[0],
        "last traceback": bool(ends) and candidate is ends[-1],
        "plain beside a traceback": bool(ends) and is_plain,
        "bare exception beside a traceback": bool(ends) and candidate.kind == EXCEPTION_LINE,
        "plain before all tracebacks": bool(ends) and is_plain and number < ends[0].line.number,
        "plain after all tracebacks": bool(ends) and is_plain and number > ends[-1].line.number,
        f"lines to the end, {size}": math.log1p(max(0, log.lines - number)) / 5,
        f"last time to the end, {size}": math.log1p(max(0, log.lines - candidate.last_at)) / 5,
        f"place, {size}": number / max(1, log.lines),
        "seen over a long time": math.log1p(max(0, candidate.last_at - number)) / 5 if is_plain else 0,
        "passes on beside one who raised": rank_of(candidate) == WRAPPER and any(_raised(end) for end in ends),
        "passed on at once": bool(after) and min(after) < 20,
        "passed on later": bool(after),
        "passed on before": any(other < number for other in passing_on),
        "a success came later": max(log.succeeded_at, log.got_on_at) > candidate.last_at,
        "after a success": 0 < log.succeeded_at < number,
        f"{rank_of(candidate)} after a success": 0 < log.succeeded_at < number,
        "said last": candidate.kind == LAST and candidate is log.last_said,
        "stands last beside a rule": candidate.kind == LAST and candidate.rule is None and _rule_near(candidate, log),
        "raised last": candidate.kind == EXCEPTION_END and candidate.last_at >= log.lines - 1,
        "the only traceback": len(ends) == 1 and candidate is ends[0],
        "among many": math.log1p(len(log.candidates)) / 5 if candidate.kind == LAST else 0,
    }


def _rule_near(last: Candidate, log: CandidateList) -> bool:
    """Whether a rule knows another line of the end."""
    return any(
        one.kind != LAST and rank_of(one) in (ROOT, SYMPTOM) and abs(one.last_at - last.line.number) <= 2 * _END
        for one in log.candidates
    )


def _raised(end: Candidate) -> bool:
    """Whether a traceback is that of the code which failed: not only logged, and not passing on another's."""
    return rank_of(end) != WRAPPER and not end.survived and end.type not in _CONTROL_FLOW


def _chain(candidate: Candidate, links: Sequence[Candidate]) -> Features:
    """Its place among exceptions of which each was raised while the one before was handled."""
    if len(links) < 2:
        return {}
    depths = sorted(link.depth for link in links)
    better = any(
        rank_of(link) in (ROOT, SYMPTOM, "none") and link.type not in _CONTROL_FLOW and link.depth < candidate.depth
        for link in links
    )
    return {
        "first of its chain": candidate.depth == depths[0],
        "last of its chain": candidate.depth == depths[-1],
        "not the first of its chain": better,
        "depth in its chain": min(candidate.depth, 5) / 5,
    }


def _echo(candidate: Candidate, log: CandidateList) -> Features:
    """Whether others pass on what it says: who raised is quoted, who raised again quotes."""
    said = _message(candidate)
    if len(said) < _SHORTEST_MESSAGE:
        return {}
    others = [other for other in log.candidates if other is not candidate and other.kind != LAST]
    return {
        "quoted later": any(said in other.text for other in others if other.line.number > candidate.line.number),
        "quotes an earlier one": any(
            said in other.text or (len(_message(other)) >= _SHORTEST_MESSAGE and _message(other) in candidate.text)
            for other in others
            if other.line.number < candidate.line.number
        ),
    }


def _message(candidate: Candidate) -> str:
    """What it says beside its type, cut: what quotes it may cut it too."""
    return candidate.text[len(candidate.type) :].strip(": ")[:_LONGEST_MESSAGE]


def _words(candidate: Candidate) -> Features:
    return {f"word {word}": 1.0 for word in words(candidate.text)}


def _may_have_ended(one: Candidate, log: CandidateList) -> bool:
    """Whether a line may be of a job's end: something was raised or logged as an error, or it stands last."""
    is_last = one.kind != LAST and one.last_at >= log.lines - 2 * _END
    return not _MARKDOWN.search(one.text) and (
        one.kind in _RAISED or one.line.level in _LOUD or is_last or _is_end(one)
    )


def _is_end(one: Candidate) -> bool:
    """Whether a rule says that the line is about a process that was ended."""
    return one.rule is not None and one.rule.name in _ENDS


def features_of_none(log: CandidateList) -> Features:
    """What speaks for it that nothing failed."""
    told = [one for one in log.candidates if one.kind != LAST and not one.outlived]
    telling = [one for one in told if rank_of(one) != WRAPPER or _is_end(one)]
    latest = max((one.last_at for one in telling), default=0)
    ends = [one for one in telling if one.kind in (EXCEPTION_END, PYTEST) and not one.ignored]
    through = log.succeeded_at or log.got_on_at
    marked = sum(bool(_MARKDOWN.search(one.text)) for one in log.candidates) / max(1, len(log.candidates))
    no_end = not any(_may_have_ended(one, log) for one in log.candidates)
    return {
        "nothing failed": 1,
        "says that it succeeded": bool(log.succeeded_at),
        "succeeded after all": bool(log.succeeded_at) and log.succeeded_at > latest,
        "got on after all": bool(log.got_on_at) and log.got_on_at > latest,
        "ends with a traceback": any(one.last_at >= log.lines - _END for one in ends),
        "markdown": marked,
        "nothing that ended": no_end,
        "a page of markdown": marked >= 0.5 and no_end,
        "no candidate": not telling,
        "no traceback": not ends,
        "no traceback, and succeeded": not ends and bool(through),
        "only passed on": not telling and bool(log.candidates),
        "ended by an exception": any(one.last_at >= log.lines - 1 and not one.survived for one in ends),
        "no traceback, and went on": math.log1p(max(0, log.lines - latest)) / 5 if telling and not ends else 0,
        "nothing raised or loud": not any(one.kind in _RAISED or one.line.level in _LOUD for one in telling),
    }
