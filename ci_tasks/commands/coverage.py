"""`coverage`: what the checkout's CI covers, generated."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import REPO, REV, WORKFLOW, command, finish, print_json

_FORMATS = ("md", "json", "html")


@command(
    help={
        "repo": REPO,
        "rev": REV,
        "workflow": WORKFLOW,
        "format": "md, to paste into an issue; json; or html, one page that needs nothing else",
        "diff": "what this checkout covers more or less than at this revision",
    }
)
def coverage(c: Context, repo: str = "", rev: str = "", workflow: str = "", format: str = "md", diff: str = "") -> None:
    """Print what the checkout's CI covers, from its workflow and the sources of its tests.

    invoke coverage                              for the tracking issue
    invoke coverage --format html > coverage.html
    invoke coverage --diff origin/main           what a branch adds and loses
    invoke coverage --rev v0.2.2 --format json
    """

    def flow() -> int:
        import sys

        from ci_tasks.errors import UnknownName
        from ci_tasks.flows.coverage import cover
        from ci_tasks.flows.source import open_source

        if format not in _FORMATS:
            raise UnknownName("format", format, _FORMATS)
        source = open_source(repo, rev or None, workflow or None)
        print(source.headline, file=sys.stderr)
        found = cover(source)
        if diff:
            from ci_tasks.report import coverage_diff
            from ci_tasks.suites.coverage.diff import difference

            changed = difference(cover(open_source(str(source.path), diff, workflow or None)), found)
            if format == "json":
                print_json(changed.public())
            else:
                print(coverage_diff.page(changed) if format == "html" else coverage_diff.markdown(changed))
        elif format == "json":
            print_json(found.public())
        elif format == "html":
            from ci_tasks.report import coverage_page

            print(coverage_page.page(found))
        else:
            from ci_tasks.report import coverage as report

            print(report.markdown(found))
        return 0

    finish(flow)
