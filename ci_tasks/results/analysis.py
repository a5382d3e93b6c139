"""Why a run hung, as a feature says it."""

from __future__ import annotations

from collections.abc import Callable

from ci_tasks import registry
from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.hang.facts import HangFacts
from ci_tasks.agent.run_directory import RunDir, read_record
from ci_tasks.records import Hang

HangAnalysis = Callable[[HangFacts], Hang]
"""Why a run hangs: what was seen of its processes."""


def hang_of(run: RunDir) -> Hang | None:
    """Why the run hung when its processes were last looked at; None where they were not, or no feature says it."""
    analysis: HangAnalysis | None = registry.hook("hang_analysis")
    try:
        facts = read_record(HangFacts, run.hang) if analysis else None
    except (OSError, RecordError):
        return None
    return analysis(facts) if analysis and facts is not None else None
