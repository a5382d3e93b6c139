"""The command `coverage`: what the checkout's CI covers, generated."""

from __future__ import annotations

import sys
from functools import partial

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import REPO, REV, WORKFLOW, switch, text
from ci_tasks.cli.output import print_json


@dataclass(frozen=True)
class CoverageOptions:
    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()
    format: str = text("md, to paste into an issue, or json", "FORMAT", default="md", choices=("md", "json")).field()
    json: bool = switch("same as --format json").field()
    diff: str | None = text("what this checkout covers more or less than at this revision", "REV").field()
    static: bool = switch("execute nothing of the checkout: only what the tests' syntax trees show").field()


def coverage(options: CoverageOptions) -> int:
    """
    ci-tasks coverage                              for the tracking issue
    ci-tasks coverage --diff origin/main           what a branch adds and loses
    ci-tasks coverage --rev v0.2.2 --format json

    The tests of your working tree are executed, with imports and programs replaced by stubs, in a sandbox without
    network. With --static, and where there is no sandbox, they are only read, which shows less.
    """
    from ci_tasks.features.coverage.collect import checkout_coverage
    from ci_tasks.features.coverage.diff import difference
    from ci_tasks.features.coverage.reports import coverage_report, diff_report
    from ci_tasks.run.checkout_source import open_source

    as_json = options.json or options.format == "json"
    source = open_source(options.repo, options.rev, options.workflow)
    say = partial(print, file=sys.stderr)
    say(source.headline)
    covered = checkout_coverage(source, static=options.static, say=say)
    if not options.diff:
        print_json(covered.public()) if as_json else print(coverage_report(covered))
        return 0
    other = open_source(str(source.path), options.diff, options.workflow)
    changed = difference(checkout_coverage(other, static=options.static, say=say), covered)
    print_json(changed.public()) if as_json else print(diff_report(changed))
    return 0
