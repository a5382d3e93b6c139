"""Commands that show a label of the checkout: `jobs`, `plan`."""

from __future__ import annotations

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.given_options import GivenOptions, OverlayOptions, with_given
from ci_tasks.cli.options import BASE, HOST, JSON, LABEL, ONLY, REPO, REV, RUN_NEEDS, WORKFLOW, switch, text
from ci_tasks.cli.output import print_json


@dataclass(frozen=True)
class JobsOptions(GivenOptions):
    label: str | None = LABEL.field(help="only this label", required=False)
    json: bool = JSON.field()
    run_needs: bool = RUN_NEEDS.field()
    changed: bool = switch(
        "which labels of all workflows a pull request with your changes would start, and why not the others",
        excludes=(("label", "it is about all labels", ""), ("workflow", "it is about all workflows", "")),
    ).field()
    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()
    base: str | None = BASE.field()


def jobs(options: JobsOptions) -> int:
    """
    ci-tasks jobs                     every row of the checkout
    ci-tasks jobs ckpt --json         one label, for programs
    ci-tasks jobs --rev v0.2.2        at another revision
    ci-tasks jobs --changed           what a pull request with your changes would start

    Nothing of the checkout is executed. Where the outputs of another job decide the rows, they are not listed;
    --run-needs runs that job's steps here.
    """
    from ci_tasks.report import jobs as tables
    from ci_tasks.run.checkout_source import open_source
    from ci_tasks.run.find_rows import list_jobs, why_no_rows
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.safe_output import terminal_width
    from ci_tasks.workflow.model import JobRow

    given = with_given(open_config(options.repo), options).given
    if options.changed:
        from ci_tasks.run.find_rows import started_labels

        compared, labels = started_labels(options.repo, options.rev, options.base, given)
        if options.json:
            print_json([encode(label, versioned=False) for label in labels])
        else:
            print("\n".join(tables.started(compared, labels, terminal_width())))
        return 0
    source = open_source(options.repo, options.rev, options.workflow, given)
    label = source.label_of(options.label) if options.label else None
    rows = list_jobs(source, label, options.base, run_needs=options.run_needs)
    if options.json:
        print_json([JobRow.of(row).public() for row in rows])
    else:
        print(source.headline)
        if rows:
            print("\n".join(tables.jobs(rows, terminal_width())))
        else:
            print(why_no_rows(source, label or "", options.base))
        if label and any(row.dynamic for row in rows):
            print("rows that an output of another job decides: --run-needs runs that job here, --output gives it")
    return 0


@dataclass(frozen=True)
class PlanOptions(OverlayOptions):
    label: str = LABEL.field()
    only: str | None = ONLY.field()
    host: str = HOST.field(default="local", commas=False)
    json: bool = JSON.field()
    out: str | None = text("write the run directories into this new directory", "DIR").field()
    run_needs: bool = RUN_NEEDS.field()
    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()
    base: str | None = BASE.field()


def plan(options: PlanOptions) -> int:
    """
    ci-tasks plan ckpt --only async-save --host sim --out /tmp/plan
    ci-tasks plan ckpt --var REGISTRY=ghcr.io/me      what only GitHub knows
    ci-tasks plan ckpt --with sglang=~/sglang --out /tmp/plan
    bash /tmp/plan/01/run.sh

    Nothing of the checkout is executed, unless --run-needs runs the job whose outputs decide the rows.
    """
    from pathlib import Path

    from ci_tasks.report import lists
    from ci_tasks.run.checkout_source import RunRequest, open_source
    from ci_tasks.run.find_rows import why_no_rows
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.run.label import plan
    from ci_tasks.safe_output import terminal_width

    config = with_given(open_config(options.repo), options)
    source = open_source(options.repo, options.rev, options.workflow, config.given)
    out = Path(options.out) if options.out else None
    label = source.label_of(options.label)
    request = RunRequest(
        *(label, options.only, options.host, options.base, out), run_needs=options.run_needs, probe=not options.no_probe
    )
    plans = plan(source, config, request, makes_on_host=not options.json)
    if options.json:
        print_json([encode(planned) for planned in plans])
    else:
        print(source.headline)
        why = why_no_rows(source, label, options.base)
        print("\n".join(lists.plans(plans, terminal_width()) if plans else [why]))
    return 0
