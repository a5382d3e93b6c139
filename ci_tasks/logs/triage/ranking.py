"""Among the possible reasons, the line that a maintainer would quote, or that nothing failed; its cause; and how likely
line and verdict are right.

Named numbers speak for and against a candidate: how it was printed, its place, what its rule and its traceback say of
it. `weights.json` has what each is worth, `bench/triage_train.py` learns it. Words of a line, names of rules and
templates of passing runs were features once. With sources left out they chose no line better (2026-11-26: 91.6 % of 343
answers with and without them).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.causes import CODE, UNKNOWN, group_of
from ci_tasks.logs.triage import candidate_reader as reading
from ci_tasks.logs.triage.candidate_reader import EXCEPTION_END, EXCEPTION_LINE, LAST, LOUD, PYTEST, Candidate
from ci_tasks.logs.triage.rules import NO_RULE, ROOT, SYMPTOM, WRAPPER, Rules
from ci_tasks.logs.triage.signature import stable
from ci_tasks.records import CANCELLED, FAILED

Features = dict[str, float]
WEIGHTS = "logs/triage/weights.json"
_LOUDNESS = {
    **dict.fromkeys(("warning", "warn", "w"), "warning"),
    **dict.fromkeys(("info", "i", "notice", *reading.SILENT), "quiet"),
    **dict.fromkeys(LOUD, "loud"),
}
_RAISED = (EXCEPTION_END, EXCEPTION_LINE, PYTEST)
_KILLED_BY_SHELL = "killed-by-shell"  # a rule
KILLED = (_KILLED_BY_SHELL, "killed-child")  # rules of lines that do not say by whom
_ENDS = (*KILLED, "launcher", "job-timeout", "cancelled", "slurm-cancelled")  # of rules
_END, _AT_ONCE, _LONG_GONE = 5, 20, 30  # lines
_LONG_LOG = 200  # lines; shorter ones are excerpts, in which the end says less
_SHORTEST_MESSAGE, _LONGEST_MESSAGE = 15, 60  # characters that tell two messages apart
_SURELY_FAILED = 1e-6  # share of "nothing failed" if it is known that something did
_LEAST = 1e-4


@functools.cache
def shipped_weights(table: str) -> Mapping[str, float]:
    """What each feature is worth, by its name: `ranking` for the reason's line, `confidence` for whether line and
    verdict are right."""
    weights: Mapping[str, float] = json.loads(resources.text(WEIGHTS))[table]
    return weights


def score(weights: Mapping[str, float], features: Features) -> float:
    """The sum of what its features are worth."""
    return math.fsum(weights.get(name, 0.0) * value for name, value in features.items() if value)


def probability(value: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, value))))


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
    def of(cls, reader: reading.CandidateReader, normal: Set[str] = frozenset()) -> CandidateList:
        """Without the lines that are `normal`, as `stable` has them: runs that passed have them too."""
        kept = [one for one in reader.candidates if not normal or stable(one.text) not in normal]
        kept.sort(key=lambda one: one.line.number)
        of_step = [one for one in kept if one.last_at >= reader.failed_step_at]  # those before it have passed
        kept = of_step or kept
        lines = max([reader.last.number if reader.last else 0, *(one.line.number for one in kept)])
        before = [one for one in kept if one.line.number <= reader.died_at]
        after: list[Candidate] = []
        if any(map(_tells, before)):
            lines, kept, after = reader.died_at, before, kept[len(before) :]
        for one in kept:
            if (after or lines > _LONG_LOG) and _is_long_gone(one, lines):
                one.rule = replace(one.rule, rank=SYMPTOM)
        return cls(kept, lines, reader.succeeded_at, reader.got_on_at, after)


def _is_long_gone(one: Candidate, died_at: int) -> bool:
    """Whether a line that was neither raised nor logged as an error was followed by many other lines: the job
    continued."""
    is_plain = one.kind == reading.PLAIN and one.line.level not in LOUD
    return is_plain and one.rule.rank == ROOT and died_at - one.last_at > _LONG_GONE


def _tells(one: Candidate) -> bool:
    """Whether a line says more than that something ended."""
    return one.rule.rank != WRAPPER and one.kind != LAST and not (one.ignored or one.survived)


# -- features ----------------------------------------------------------------------------------------------------------


def features(log: CandidateList) -> list[Features]:
    """The numbers of each candidate of a log, and then the numbers of "nothing failed"."""
    told = [one for one in log.candidates if not one.ignored]
    matched = [one for one in log.candidates if one.kind != LAST]
    ends = [one for one in told if one.kind == EXCEPTION_END]
    roots = [one for one in told if one.rule.rank == ROOT]
    passing_on = [one.line.number for one in log.candidates if one.rule.rank == WRAPPER]
    last = next((one for one in reversed(log.candidates) if one.kind == LAST), None)
    killed_at = max((one.last_at for one in log.candidates if one.rule.name == _KILLED_BY_SHELL), default=0)
    size = "long log" if log.lines > _LONG_LOG else "excerpt"

    def of(one: Candidate) -> Features:
        number, rank, said = one.line.number, one.rule.rank, _message(one)
        is_plain = one.kind not in _RAISED
        return {
            f"kind {one.kind}": 1,
            f"rank {rank}": 1,
            f"{rank} as {one.kind}": 1,
            f"level {_LOUDNESS.get(one.line.level, 'none')}": 1,
            "survived": one.survived,
            "ignored": one.ignored,
            "repeated": math.log1p(one.count - 1),
            "wrapper with a cause": rank == WRAPPER and bool(one.rule.cause),
            "order": min(one.order, 10) / 10,
            "said last": one is last and not killed_at > number,  # what SIGKILL ends has no last word
            "first of all": one.order == 0 and rank != WRAPPER,
            "first root": bool(roots) and one is roots[0],
            "a root stands elsewhere": bool(roots) and one not in roots,
            "plain beside a traceback": bool(ends) and is_plain,
            "bare exception beside a traceback": bool(ends) and one.kind == EXCEPTION_LINE,
            "plain before all tracebacks": bool(ends) and is_plain and number < ends[0].line.number,
            f"last time to the end, {size}": math.log1p(max(0, log.lines - one.last_at)) / 5,
            "seen over a long time": math.log1p(max(0, one.last_at - number)) / 5 if is_plain else 0,
            "passes on beside one who raised": rank == WRAPPER and any(map(_tells, ends)),
            "passed on at once": any(0 < other - number < _AT_ONCE for other in passing_on),
            "passed on later": any(other > number for other in passing_on),
            "passed on before": any(other < number for other in passing_on),
            # A line that is only at the end is worth less if a rule knows another line there.
            "stands last beside a rule": one.kind == LAST
            and one.rule is NO_RULE
            and any(other.rule is not NO_RULE and abs(other.last_at - number) <= 2 * _END for other in matched),
            # If each exception was raised while the one before was handled, the first counts.
            "not the first of its chain": any(
                one.chain and link.chain == one.chain and link.rule.rank != WRAPPER and link.depth < one.depth
                for link in ends
            ),
            # Processes that pass an exception on quote the one that raised it.
            "quoted later": len(said) >= _SHORTEST_MESSAGE
            and any(said in other.text for other in matched if other.line.number > number),
        }

    return [*map(of, log.candidates), _of_nothing(log)]


def _message(one: Candidate) -> str:
    """What it says beside its type, cut: what quotes it may cut it too."""
    return one.text[len(one.type) :].strip(": ")[:_LONGEST_MESSAGE]


def _of_nothing(log: CandidateList) -> Features:
    telling = [one for one in log.candidates if one.kind != LAST and not one.outlived]
    telling = [one for one in telling if one.rule.rank != WRAPPER or one.rule.name in _ENDS]
    has_ends = any(one.kind in (EXCEPTION_END, PYTEST) and not one.ignored for one in telling)
    latest = max((one.last_at for one in telling), default=0)
    return {
        "nothing failed": 1,
        "succeeded after all": bool(log.succeeded_at) and log.succeeded_at > latest,
        "nothing that ended": not any(_may_have_ended(one, log) for one in log.candidates),
        "no candidate": not telling,
        "no traceback": not has_ends,
        "no traceback, and succeeded": not has_ends and bool(log.succeeded_at or log.got_on_at),
        "no traceback, and went on": math.log1p(max(0, log.lines - latest)) / 5 if telling and not has_ends else 0,
    }


def _may_have_ended(one: Candidate, log: CandidateList) -> bool:
    """Whether a line may be of a job's end: something was raised or logged as an error, or it stands last."""
    is_last = one.kind != LAST and one.last_at >= log.lines - 2 * _END
    return one.kind in _RAISED or one.line.level in LOUD or is_last or one.rule.name in _ENDS


# -- the line ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """The candidates with their probabilities, the best first; `nothing` is the probability that nothing failed, and
    `best` the score of the first: the probabilities are shares, also of candidates that are all poor."""

    order: list[tuple[float, Candidate]]
    nothing: float
    best: float

    @property
    def failed(self) -> bool:
        """The place at the end alone is no evidence of a failure."""
        telling = [(share, one) for share, one in self.order if not one.outlived]
        told = sum(share for share, one in telling if one.kind != LAST or one.rule is not NO_RULE)
        return bool(self.order) and (self.nothing < _SURELY_FAILED or self.nothing < told)


def rank(log: CandidateList, failed: bool, weights: Mapping[str, float] | None = None) -> Ranking:
    """What may be the reason; `failed` says that something is known to have failed. `weights` are the shipped ones."""
    scores = [score(weights or shipped_weights("ranking"), row) for row in features(log)]
    best = max(scores[:-1], default=0.0)
    scores[-1] = -1e3 if failed else scores[-1]
    powers = [math.exp(max(-700.0, value - max(scores))) for value in scores]
    *shares, none = (power / sum(powers) for power in powers)
    pairs = sorted(zip(shares, log.candidates, strict=True), key=lambda pair: (-pair[0], pair[1].line.number))
    return Ranking([*pairs, *((0.0, candidate) for candidate in log.consequences)], none, best)


# -- its cause ---------------------------------------------------------------------------------------------------------


def cause_of(candidate: Candidate, candidates: Sequence[Candidate], rules: Rules) -> tuple[str, str]:
    """(cause, verdict) of the chosen line. They come from the most special root of its chain (`The read operation timed
    out` is the hub's if its last link says so), else from what wraps it there, the code that raised it, its own rule,
    or the nearest wrapper."""
    rule = candidate.rule
    if rule.verdict == CANCELLED:
        return rule.blame
    links = [one.rule for one in candidates if one is candidate or (one.chain and one.chain == candidate.chain)]
    of_chain = [link for link in links if link.cause]
    if roots := [link for link in of_chain if link.rank == ROOT]:
        return min(roots, key=lambda root: root.order).blame
    if wrapping := [link for link in of_chain if link is not rule]:
        return wrapping[0].blame
    if place := rules.place(candidate.text, candidate.frames[:-13:-1]):
        return place.blame
    if rule.cause:
        return rule.blame
    around = [one for one in candidates if one.rule.rank == WRAPPER and one.rule.cause not in ("", CANCELLED)]
    if candidate.kind in _RAISED:  # no process that raised it was killed, or left alone by other ranks
        around = [one for one in around if group_of(one.rule.cause) == CODE]
    nearest = min(around, key=lambda one: abs(one.line.number - candidate.line.number), default=None)
    return nearest.rule.blame if nearest else (UNKNOWN, FAILED)


def blamed_group(candidate: Candidate, cause: str, verdict: str) -> str:
    """The group of the cause; the code's group for an exception of no known cause that is not the environment's."""
    is_code = cause == UNKNOWN and verdict == FAILED and candidate.kind in _RAISED
    return CODE if is_code else group_of(cause)


# -- how sure ----------------------------------------------------------------------------------------------------------


def confidence_features(ranking: Ranking, blocked: bool) -> Features:
    """What speaks for line and verdict; `blocked` says that the environment is blamed."""
    if not ranking.failed:
        share = min(max(ranking.nothing, _LEAST), 1 - _LEAST)
        return {"nothing failed": 1, "nothing failed, log-odds": math.log(share / (1 - share))}
    best, second, *_ = (*(max(share, _LEAST) for share, _ in ranking.order[:2]), _LEAST)
    return {
        "always": 1,
        "best against second": min(math.log(best / second), 6),
        "score of the best": min(max(ranking.best, -4.0), 8.0) / 4,
        "blocked": blocked,
    }
