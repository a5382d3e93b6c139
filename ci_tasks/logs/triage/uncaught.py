"""What the probe saw of a run's end, beside the lines of its log: exceptions that no process caught, and which rank
ended first."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.probe.evidence import LinkedException, NotedException, ProcessEvidence, RunEvidence
from ci_tasks.logs.causes import uncaught_exceptions
from ci_tasks.logs.triage.candidate_reader import PYTEST, Candidate
from ci_tasks.logs.triage.rules import WRAPPER, Rules

_OF_COMMUNICATION = ("nccl_error", "ray_cluster")
_LEAST_RANKS = 2


def uncaught_candidates(candidates: Sequence[Candidate], evidence: RunEvidence | None, rules: Rules) -> list[Candidate]:
    """Those that print the exception which ended a process first; none where the log has none of them.

    One that only passes on what another process raised does not count. Where pytest reported a failure, a process that
    a test started may well end with an exception, so there the log decides.
    """
    if evidence is None or any(candidate.kind == PYTEST for candidate in candidates):
        return []
    if _silent_rank(evidence, rules) is not None:
        return []  # what the others raised may follow from its end; the log may have its own words
    for _, exception in uncaught_exceptions(evidence):
        printed = [one for one in candidates if any(_prints(one, link) for link in exception.chain)]
        if printed and not _follows(exception, rules, ()):
            return printed
    return []


def first_to_end(evidence: RunEvidence | None, rules: Rules) -> str:
    """Which of several ranks ended first, as a sentence; "" where that was not seen."""
    ranks = _ranks(evidence) if evidence is not None else {}
    if evidence is None or len(ranks) < _LEAST_RANKS:
        return ""
    if (silent := _silent_rank(evidence, rules)) is not None:
        raised = any(process.exceptions for process in ranks.values())
        others = "the other ranks only lost the connection to it" if raised else "the other ranks ended by themselves"
        return (
            f"rank {silent.rank} (pid {silent.pid}) alone ended without an end mark, as what is killed does; {others}"
        )
    for process, exception in _ended_by(evidence):
        if process.rank is not None and not _follows(exception, rules, ()):
            return f"rank {process.rank} (pid {process.pid}) ended first, with {_short(exception.chain[0].type)}"
    return ""


def _silent_rank(evidence: RunEvidence, rules: Rules) -> ProcessEvidence | None:
    """The only rank that left neither an end mark nor an exception, where those of the others follow from its end.
    Several such ranks may have been killed when the job was over: then none is the first."""
    ranks = _ranks(evidence)
    silent = [process for process in ranks.values() if not process.end and not process.exceptions]
    own = [pair for pair in _ended_by(evidence) if not _follows(pair[1], rules, _OF_COMMUNICATION)]
    return silent[0] if len(silent) == 1 and len(ranks) >= _LEAST_RANKS and not own else None


def _ranks(evidence: RunEvidence) -> dict[int, ProcessEvidence]:
    """The process of each rank: the first one in the tree, since its helpers inherit its environment. None where
    several groups of processes have the same ranks."""
    rank_of = {process.key: process.rank for process in evidence.processes}
    ranks: dict[int, ProcessEvidence] = {}
    for process in evidence.processes:
        if process.rank is None or rank_of.get(process.parent) == process.rank or process.end == "exec":
            continue
        if process.rank in ranks:
            return {}
        ranks[process.rank] = process
    return ranks


def _ended_by(evidence: RunEvidence) -> list[tuple[ProcessEvidence, NotedException]]:
    """Uncaught exceptions that ended a process, which one of a thread does not."""
    return [pair for pair in uncaught_exceptions(evidence) if pair[1].where != "thread"]


def _follows(exception: NotedException, rules: Rules, causes: Sequence[str]) -> bool:
    """Whether an exception passes on another one, or has one of the causes that the end of another process has."""
    rule = rules.of(_text(exception.chain[0]))
    return rule.rank == WRAPPER or rule.cause in causes


def _prints(candidate: Candidate, link: LinkedException) -> bool:
    is_same = bool(candidate.type) and _short(candidate.type) == _short(link.type)
    return candidate.text.startswith(_text(link)) or (is_same and _message(link) in candidate.text)


def _text(link: LinkedException) -> str:
    return f"{link.type.removeprefix('builtins.')}: {_message(link)}".removesuffix(": ")


def _message(link: LinkedException) -> str:
    return next(iter(link.message.strip().splitlines()), "").strip()[:200]


def _short(name: str) -> str:
    return name.split("(")[0].rsplit(".", 1)[-1]
