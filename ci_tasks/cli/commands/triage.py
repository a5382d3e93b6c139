"""The command `triage`."""

from __future__ import annotations

from typing import Any

from ci_tasks import registry
from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.output import print_json
from ci_tasks.errors import UsageError


@dataclass(frozen=True)
class TriageOptions:
    log: str | None = flags.positional(flags.FAILED_LOG.help, required=False).field()
    url: str | None = flags.FAILED_URL.field()
    job: str | None = flags.FAILED_JOB.field()
    attempt: int | None = flags.FAILED_ATTEMPT.field()
    exit_code: int | None = flags.number("the job's exit code, where the log does not say it", "", minimum=0).field()
    passed: tuple[str, ...] = flags.repeatable(
        "a log of a run of this job that passed: its lines are normal; may be repeated", "FILE"
    ).field()
    json: bool = flags.JSON.field()
    brief: bool = flags.BRIEF.field()


def triage(options: TriageOptions) -> int:
    """
    ci-tasks triage failed.log
    gh run view 123 --log-failed | ci-tasks triage -
    ci-tasks triage --url https://github.com/OWNER/REPO/actions/runs/1/job/2
    ci-tasks triage failed.log --passed yesterday.log --exit-code 1
    ci-tasks triage failed.log --brief            for an assistant
    """
    from ci_tasks.logs.job_log import all_from_file, all_from_url
    from ci_tasks.logs.triage.log_triage import together
    from ci_tasks.report import brief
    from ci_tasks.report.triage import describe
    from ci_tasks.safe_output import terminal_width

    known: dict[str, Any] = {"exit_code": options.exit_code, "passed": options.passed}
    if options.url:
        analysed = all_from_url(options.url, **known)
    elif options.log:
        analysed = all_from_file(options.log, options.job, attempt=options.attempt, **known)
    else:
        raise UsageError("triage needs LOG, or --url URL", hint="`ci-tasks triage --help` has examples")
    found = together([(one.job.job_name, one.triage) for one in analysed])
    source = options.url or options.log or ""
    if options.json:
        print_json(encode(found, versioned=False))
    elif options.brief:
        print(brief.triage(found, source if options.url else analysed[0].name), end="")
    else:
        print("\n".join(describe(found, terminal_width(), source)))
        if options.url and found.signature and (history := registry.hook("ci_history")):
            print("\n".join(history(options.url, found)))
    return 0
