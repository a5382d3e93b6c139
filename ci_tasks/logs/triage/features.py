"""What speaks for and against a candidate, as named numbers: how it was printed, where it stands, and what its rule and
its traceback say of it. `weights.json` has what each is worth, `bench/triage_train.py` learns it.

Words of a line, names of rules and templates of passing runs were features once. With sources left out they chose no
line better (2026-11-26: 91.6 % of 343 answers with and without them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence, Set
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.triage.candidate_reader import (
    EXCEPTION_END,
    EXCEPTION_LINE,
    LAST,
    LOUD,
    PLAIN,
    PYTEST,
    SILENT,
    Candidate,
    CandidateReader,
)
from ci_tasks.logs.triage.rules import ROOT, SYMPTOM, WRAPPER
from ci_tasks.logs.triage.signature import stable

Features = dict[str, float]
_QUIET, _WARNING = ("info", "i", "notice", *SILENT), ("warning", "warn", "w")
_MARKDOWN = re.compile(r"^(?:[-*>|] |#+ |\d+\. |```)|\*\*\w|\]\(|(?:^|\s)`[^`]+`| \|$")
_END = 5  # lines
_LONG_GONE = 30  # the same
_SHORTEST_MESSAGE, _LONGEST_MESSAGE = 15, 60  # characters that tell two messages apart
_RAISED = (EXCEPTION_END, EXCEPTION_LINE, PYTEST)
_ENDS = ("killed-by-shell", "killed-child", "launcher", "job-timeout", "cancelled", "slurm-cancelled")  # of rules
_LONG_LOG = 200  # lines; shorter ones are excerpts, in which the end says less


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
        """Without the lines that are `normal`, as `stable` has them: runs that passed have them too."""
        kept = [one for one in reader.candidates if not normal or stable(one.text) not in normal]
        kept.sort(key=lambda one: one.line.number)
        lines = max([reader.last.number if reader.last else 0, *(one.line.number for one in kept)])
        before = [one for one in kept if one.line.number <= reader.died_at]
        after: list[Candidate] = []
        if any(_tells(one) for one in before):
            lines, kept, after = reader.died_at, before, kept[len(before) :]
        for one in kept:
            if one.rule is not None and (after or lines > _LONG_LOG) and _is_long_gone(one, lines):
                one.rule = replace(one.rule, rank=SYMPTOM)
        return cls(kept, lines, reader.succeeded_at, reader.got_on_at, after)


def rank_of(candidate: Candidate) -> str:
    """What its rule makes of it, `none` where no rule knows it."""
    return candidate.rule.rank if candidate.rule else "none"


def _is_long_gone(one: Candidate, died_at: int) -> bool:
    """Whether a line that was neither raised nor logged as an error was followed by much else: the job went on."""
    is_plain = one.kind == PLAIN and one.line.level not in LOUD
    return is_plain and rank_of(one) == ROOT and died_at - one.last_at > _LONG_GONE


def _tells(one: Candidate) -> bool:
    """Whether a line says more than that something ended."""
    return rank_of(one) != WRAPPER and one.kind != LAST and not (one.ignored or one.survived)


def features(log: CandidateList) -> list[Features]:
    """Those of each candidate of a log."""
    ends = [one for one in log.candidates if one.kind == EXCEPTION_END and not one.ignored]
    roots = [one for one in log.candidates if rank_of(one) == ROOT and not one.ignored]
    passing_on = [one.line.number for one in log.candidates if rank_of(one) == WRAPPER]
    last = next((one for one in reversed(log.candidates) if one.kind == LAST), None)
    return [
        _how(one) | _where(one, log, ends, roots, passing_on) | {"said last": one is last} for one in log.candidates
    ]


def _how(one: Candidate) -> Features:
    rank, level = rank_of(one), one.line.level
    loudness = "warning" if level in _WARNING else "quiet" if level in _QUIET else "loud" if level in LOUD else "none"
    return {
        f"kind {one.kind}": 1,
        f"rank {rank}": 1,
        f"{rank} as {one.kind}": 1,
        f"level {loudness}": 1,
        "survived": one.survived,
        "ignored": one.ignored,
        "repeated": math.log1p(one.count - 1),
        "short": len(one.text) < 25,
        "wrapper with a cause": rank == WRAPPER and one.rule is not None and bool(one.rule.cause),
    }


def _where(
    one: Candidate,
    log: CandidateList,
    ends: Sequence[Candidate],
    roots: Sequence[Candidate],
    passing_on: Sequence[int],
) -> Features:
    number, rank = one.line.number, rank_of(one)
    after = [other - number for other in passing_on if other > number]
    size = "long log" if log.lines > _LONG_LOG else "excerpt"
    is_plain = one.kind not in _RAISED
    chain = [end for end in ends if one.chain and end.chain == one.chain]
    said = _message(one)
    return {
        "order": min(one.order, 10) / 10,
        "first of all": one.order == 0 and rank != WRAPPER,
        "first root": bool(roots) and one is roots[0],
        "a root stands elsewhere": bool(roots) and one not in roots,
        "plain beside a traceback": bool(ends) and is_plain,
        "bare exception beside a traceback": bool(ends) and one.kind == EXCEPTION_LINE,
        "plain before all tracebacks": bool(ends) and is_plain and number < ends[0].line.number,
        f"last time to the end, {size}": math.log1p(max(0, log.lines - one.last_at)) / 5,
        "seen over a long time": math.log1p(max(0, one.last_at - number)) / 5 if is_plain else 0,
        "passes on beside one who raised": rank == WRAPPER and any(map(_tells, ends)),
        "passed on at once": bool(after) and min(after) < 20,
        "passed on later": bool(after),
        "passed on before": any(other < number for other in passing_on),
        "a success came later": max(log.succeeded_at, log.got_on_at) > one.last_at,
        "after a success": 0 < log.succeeded_at < number,
        "symptom after a success": 0 < log.succeeded_at < number and rank == SYMPTOM,
        # A line that only stands at the end is less where a rule knows another one there.
        "stands last beside a rule": one.kind == LAST
        and one.rule is None
        and any(
            other.kind != LAST and rank_of(other) != "none" and abs(other.last_at - number) <= 2 * _END
            for other in log.candidates
        ),
        "raised last": one.kind == EXCEPTION_END and one.last_at >= log.lines - 1,
        # Of exceptions of which each was raised while the one before was handled, the first counts.
        "not the first of its chain": any(rank_of(link) != WRAPPER and link.depth < one.depth for link in chain),
        # Who raised is quoted by those that pass it on.
        "quoted later": len(said) >= _SHORTEST_MESSAGE
        and any(said in other.text for other in log.candidates if other.kind != LAST and other.line.number > number),
    }


def _message(one: Candidate) -> str:
    """What it says beside its type, cut: what quotes it may cut it too."""
    return one.text[len(one.type) :].strip(": ")[:_LONGEST_MESSAGE]


def features_of_none(log: CandidateList) -> Features:
    """What speaks for it that nothing failed."""
    telling = [one for one in log.candidates if one.kind != LAST and not one.outlived]
    telling = [one for one in telling if rank_of(one) != WRAPPER or _is_end(one)]
    ends = [one for one in telling if one.kind in (EXCEPTION_END, PYTEST) and not one.ignored]
    latest = max((one.last_at for one in telling), default=0)
    marked = sum(bool(_MARKDOWN.search(one.text)) for one in log.candidates) / max(1, len(log.candidates))
    no_end = not any(_may_have_ended(one, log) for one in log.candidates)
    return {
        "nothing failed": 1,
        "succeeded after all": bool(log.succeeded_at) and log.succeeded_at > latest,
        "ends with a traceback": any(one.last_at >= log.lines - _END for one in ends),
        "ended by an exception": any(one.last_at >= log.lines - 1 and not one.survived for one in ends),
        "nothing that ended": no_end,
        "a page of markdown": marked >= 0.5 and no_end,
        "no candidate": not telling,
        "no traceback": not ends,
        "no traceback, and succeeded": not ends and bool(log.succeeded_at or log.got_on_at),
        "no traceback, and went on": math.log1p(max(0, log.lines - latest)) / 5 if telling and not ends else 0,
    }


def _may_have_ended(one: Candidate, log: CandidateList) -> bool:
    """Whether a line may be of a job's end: something was raised or logged as an error, or it stands last."""
    is_last = one.kind != LAST and one.last_at >= log.lines - 2 * _END
    is_end = one.kind in _RAISED or one.line.level in LOUD or is_last or _is_end(one)
    return is_end and not _MARKDOWN.search(one.text)


def _is_end(one: Candidate) -> bool:
    """Whether a rule says that the line is about a process that was ended."""
    return one.rule is not None and one.rule.name in _ENDS
