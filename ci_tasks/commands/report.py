"""The command about what runs did, for others to read: `report`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import RUN, command, finish


@command(
    positional=["run"],
    help={
        "run": f"{RUN}; several with commas",
        "html": "write one page that needs nothing but a browser",
        "markdown": "print markdown, as for GitHub's job summary",
        "junit": "write the rows as JUnit XML",
        "ci-log": "with --html: CI's own log of the row, whose metrics are drawn beside the run's",
        "job": "which job, where CI's log holds several",
    },
)
def report(
    c: Context, run: str, html: str = "", markdown: bool = False, junit: str = "", ci_log: str = "", job: str = ""
) -> None:
    """Tell what runs did: again in the terminal, or for others.

    invoke report last
    invoke report last --html report.html                 table, failures, timeline, metrics, logs in one file
    invoke report last --markdown >> $GITHUB_STEP_SUMMARY
    invoke report RUN --html report.html --ci-log ci.log  CI's metrics beside the run's
    invoke report RUN,RUN --junit report.xml

    Ends with 0 whatever the runs did; `attach` ends with their exit code.
    """

    def flow() -> int:
        from pathlib import Path

        from ci_tasks.errors import UsageError
        from ci_tasks.flows.reporting import Ask, report

        names = [name.strip() for name in run.split(",") if name.strip()]
        if not names:
            raise UsageError("report needs a run", hint="`runs` lists them, and `last` is the newest")
        ask = Ask(
            html=Path(html).expanduser() if html else None,
            junit=Path(junit).expanduser() if junit else None,
            markdown=markdown,
            ci_log=ci_log or None,
            job=job or None,
        )
        return report(names, ask)

    finish(flow)
