"""The options of `triage`."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.trials.options import ATTEMPT, JOB, LOG, URL


@dataclass(frozen=True)
class TriageOptions:
    log: str | None = flags.positional(LOG.help, required=False).field()
    url: str | None = URL.field()
    job: str | None = JOB.field()
    attempt: int | None = ATTEMPT.field()
    exit_code: int | None = flags.number("the job's exit code, where the log does not say it", "", minimum=0).field()
    passed: tuple[str, ...] = flags.repeatable(
        "a log of a run of this job that passed: its lines are normal; may be repeated", "FILE"
    ).field()
    json: bool = flags.JSON.field()
    brief: bool = flags.BRIEF.field()
