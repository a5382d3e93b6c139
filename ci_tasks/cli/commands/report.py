"""The command `report`."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import BRIEF, JSON, RUN, switch, text
from ci_tasks.cli.output import print_record
from ci_tasks.resources import user_path


@dataclass(frozen=True)
class ReportOptions:
    run: str = RUN.field(help=f"{RUN.help}; several with commas", commas=True)
    html: str | None = text("write one self-contained HTML page", "FILE").field()
    markdown: bool = switch("print markdown, for GitHub's job summary").field()
    junit: str | None = text("write the rows as JUnit XML", "FILE").field()
    ci_log: str | None = text("with --html: CI's log of the row, to draw its metrics beside the run's", "FILE").field()
    job: str | None = text("the job, if CI's log has several", "JOB").field()
    deviations: bool = switch("list all differences from CI, also those that the label's last run had").field()
    json: bool = JSON.field(excludes=(("markdown", "both would be on standard output", ""),))
    brief: bool = BRIEF.field()


def report(options: ReportOptions) -> int:
    """
    ci-tasks report last
    ci-tasks report last --html report.html                 table, failures, timeline, metrics, logs in one file
    ci-tasks report last --markdown >> $GITHUB_STEP_SUMMARY
    ci-tasks report RUN --html report.html --ci-log ci.log  CI's metrics beside the run's
    ci-tasks report RUN,RUN --junit report.xml
    ci-tasks report last --brief                            for an assistant

    Exit code 0 whatever the runs did; `attach` ends with their exit code.
    """
    from ci_tasks.run.report_runs import ReportOutputs, report

    names = [name.strip() for name in options.run.split(",") if name.strip()]
    outputs = ReportOutputs(
        html=user_path(options.html) if options.html else None,
        junit=user_path(options.junit) if options.junit else None,
        markdown=options.markdown,
        brief=options.brief,
        quiet=options.json,
        deviations=options.deviations,
        ci_log=options.ci_log,
        job=options.job,
    )
    result = report(names, outputs)
    print_record(result, as_json=options.json)
    return 0
