"""The reason of a failure, with what is known of its end beside what the log says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ci_tasks.agent import run_directory
from ci_tasks.features.failures.triage.log_triage import triage
from ci_tasks.features.failures.triage.signature import sign
from ci_tasks.records import FAILED, Triage
from ci_tasks.results.analysis import JobKnowledge
from ci_tasks.results.triage import TIMEOUT_HANG, UNKNOWN, group_of
from ci_tasks.results.verdict import SURE, JobEnd


def analyse(log: Iterable[bytes], ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage:
    """Why a job failed; what ran into its timeout hangs, unless the log knows better."""
    result = triage(log, ended.exit_code, passed=known.passed)
    if ended.end != run_directory.END_TIMEOUT or (result.cause != UNKNOWN and result.confidence >= SURE):
        return result
    return replace(
        result,
        cause=TIMEOUT_HANG,
        verdict=FAILED,
        group=group_of(TIMEOUT_HANG),
        signature=sign("timeout", result.line, result.frames),
        reason=f"it did not end within {ended.timeout_minutes:g} min",
    )
