"""What features make of a failure: the reason that a log gives, and CI's own log of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ci_tasks import registry
from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.hang.facts import HangFacts
from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_record
from ci_tasks.records import Hang, Triage
from ci_tasks.results import own_modules
from ci_tasks.results.own_modules import IsOwnModule

if TYPE_CHECKING:
    from ci_tasks.results.verdict import JobEnd


@dataclass(frozen=True)
class JobKnowledge:
    """What is known of a job beside its log and its end: what its processes noted, logs of runs of it that passed, as
    pieces of bytes, and which modules the code under test would have."""

    evidence: RunEvidence | None = None
    passed: Sequence[Iterable[bytes]] = ()
    is_own_module: IsOwnModule = own_modules.none


FailureAnalysis = Callable[[Iterable[bytes], "JobEnd", JobKnowledge], Triage]
"""Why a job failed: its log's bytes, cut anywhere, how it ended, and what else is known."""


@dataclass(frozen=True)
class CiJobLog:
    """CI's log of one job. `text` are its bytes without CI's prefixes, which can be read again and again;
    `failing_line` is the 1-based line that says why it failed."""

    name: str
    text: Iterable[bytes]
    failing_line: int | None


HangAnalysis = Callable[["HangFacts"], Hang]
"""Why a run hangs: what was seen of its processes."""

CiLogReader = Callable[[str, "str | None"], AbstractContextManager[CiJobLog]]
"""Opens a file with CI's log, of the job that is named where it holds several. Raises UsageError."""


def analyse(log: Iterable[bytes], ended: JobEnd, known: JobKnowledge = JobKnowledge()) -> Triage | None:
    """Why a job failed, as far as its log says; None where no feature analyses failures."""
    failure_analysis: FailureAnalysis | None = registry.hook("failure_analysis")
    return failure_analysis(log, ended, known) if failure_analysis else None


def hang_of(run: RunDir) -> Hang | None:
    """Why the run hung when its processes were last looked at; None where they were not, or no feature says it."""
    analysis: HangAnalysis | None = registry.hook("hang_analysis")
    try:
        facts = read_record(HangFacts, run.hang) if analysis else None
    except (OSError, RecordError):
        return None
    return analysis(facts) if analysis and facts is not None else None


def ci_log_reader() -> CiLogReader | None:
    """What opens CI's logs; None where no feature does."""
    reader: CiLogReader | None = registry.hook("ci_log_reader")
    return reader
