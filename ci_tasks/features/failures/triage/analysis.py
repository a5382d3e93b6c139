"""The reason of a failure, with what is known of its end beside what the log says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ci_tasks.agent import run_directory
from ci_tasks.features.failures.triage.identity import of_evidence
from ci_tasks.features.failures.triage.log_triage import triage
from ci_tasks.features.failures.triage.rules import shipped
from ci_tasks.features.failures.triage.uncaught import first_to_end
from ci_tasks.logs.causes import TIMEOUT_HANG, UNKNOWN, JobEnd, JobKnowledge, group_of
from ci_tasks.records import BLOCKED, FAILED, FailureEvidence, Triage

_KILLED = ("killed-child", "killed-by-shell")  # rules of lines that do not say by whom
_OF_A_KILL = (*_KILLED, "cancelled")  # rules of what the timeout itself makes a job print
_NOT_FOR_MEMORY = "a process was killed by SIGKILL, not by the kernel for its memory: it killed none meanwhile"

_LIKELY = 0.5  # confidence: less likely than not is no better than what is known, that the time was over


def analyse(log: Iterable[bytes], ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage:
    """Why a job failed; what ran into its timeout hangs, unless the log knows better."""
    result = triage(log, ended.exit_code, passed=known.passed, evidence=known.evidence, is_own=known.is_own_module)
    knows_better = result.cause != UNKNOWN and result.confidence >= _LIKELY and result.rule not in _OF_A_KILL
    if result.rule in _KILLED and ended.oom_kills == 0:
        blameless = replace(result, cause=UNKNOWN, verdict=FAILED, group=group_of(UNKNOWN))
        result = replace(blameless, reason=_NOT_FOR_MEMORY)
    if ended.end != run_directory.END_TIMEOUT:
        return _with_first_to_end(result, known)
    if knows_better:
        return result
    identity = of_evidence(replace(result.evidence or FailureEvidence(), exception="timeout"))
    hang = replace(result, cause=TIMEOUT_HANG, verdict=FAILED, group=group_of(TIMEOUT_HANG), **vars(identity))
    return replace(hang, reason=f"it did not end within {ended.timeout_minutes:g} min")


def _with_first_to_end(result: Triage, known: JobKnowledge) -> Triage:
    """With the rank that ended first, before what the log says. After a timeout all were killed."""
    if result.verdict not in (FAILED, BLOCKED):
        return result
    first = first_to_end(known.evidence, shipped())
    return replace(result, reason="; ".join(filter(None, [first, result.reason]))) if first else result
