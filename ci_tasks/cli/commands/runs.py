"""Commands about existing runs: `runs`, `logs`, `attach`, `fetch`, `cancel`, `shell`, `retry`, `report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import BRIEF, EVENTS, HOST, HOST_OF_RUN, JSON, ONE_RUN, ONLY, RUN, number, switch, text
from ci_tasks.cli.output import people_read_stderr, print_json, print_record, run_batch
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from ci_tasks.records import BatchResult
    from ci_tasks.run.events import EventStream

_CANDIDATES = "ci_tasks.cli.completion"
_STATUS = "only these statuses, with commas: passed, failed, vacuous, blocked, … (else all but planned)"
_FLAKES = "count statuses and times of each row on each host, over all matching runs"


@dataclass(frozen=True)
class RunsOptions:
    label: str | None = text("only runs of this label", "LABEL", complete=f"{_CANDIDATES}:labels").field()
    row: str | None = ONLY.field(complete="")
    status: str | None = text(_STATUS, "STATUS", commas=True, complete=f"{_CANDIDATES}:statuses").field()
    host: str | None = HOST.field(help="only runs on these hosts, with commas", hint="", nox=False)
    commit: str | None = text("only runs of the commit with this prefix", "HASH").field()
    since: str | None = text("a date, a time, or how long ago: 2026-11-01, 2026-11-01T18:30, 12h, 3d", "WHEN").field()
    until: str | None = text("the same; a date includes that whole day", "WHEN").field()
    limit: int | None = number("number of runs to list, newest first (else 20)", "runs").field()
    flakes: bool = switch(_FLAKES, excludes=(("limit", "--flakes counts all matching runs", "use --since"),)).field()
    json: bool = JSON.field()


def runs(options: RunsOptions) -> int:
    """
    ci-tasks runs --limit 5
    ci-tasks runs --label ckpt --status failed,lost --since 3d
    ci-tasks runs --row async --host h100a --commit 25740fd8
    ci-tasks runs --flakes --label ckpt    for each row: passed, failed, duration, queue time
    ci-tasks runs --json                   their records, for programs
    """
    from ci_tasks.run.list_runs import show_flakes, show_runs

    words = {name: value for name, value in vars(options).items() if value and name not in ("flakes", "json")}
    return show_flakes(words, json=options.json) if options.flakes else show_runs(words, json=options.json)


@dataclass(frozen=True)
class LogsOptions:
    run: str = ONE_RUN.field()
    follow: bool = switch("follow the log until the run has ended").field()
    raw: bool = switch("do not change the log: its control sequences reach the terminal").field()


def logs(options: LogsOptions) -> int:
    """
    ci-tasks logs 20261120-103000-ckpt.03
    ci-tasks logs last --follow
    ci-tasks logs last --raw > log
    """
    from contextlib import closing

    from ci_tasks.results.load import find_one
    from ci_tasks.run.progress import GrowingLog

    id, run = find_one(options.run)
    with closing(GrowingLog(run.log, raw=options.raw)) as log:
        log.copy()
        if options.follow:
            from ci_tasks.run.attach import follow_log

            follow_log(id, run, log)
    return 0


@dataclass(frozen=True)
class RunOnHostOptions:
    run: str = RUN.field()
    host: str | None = HOST_OF_RUN.field()
    json: bool = JSON.field()


@dataclass(frozen=True)
class AttachOptions(RunOnHostOptions):
    events: str | None = EVENTS.field()


def attach(options: AttachOptions) -> int:
    """
    ci-tasks attach last                                 ^C detaches; the runs continue
    ci-tasks attach 20261120-103000-ckpt --host h100a    a colleague's run, from its host
    """
    from ci_tasks.run.attach import attach
    from ci_tasks.run.hosts_files import config_for_run

    def run(events: EventStream | None) -> BatchResult:
        return attach(options.run, config_for_run(options.run), options.host, events)

    return run_batch(run, as_json=options.json, events=options.events)


def fetch(options: RunOnHostOptions) -> int:
    """
    ci-tasks fetch last
    """
    from ci_tasks.run.attach import fetch
    from ci_tasks.run.hosts_files import config_for_run

    with people_read_stderr(options.json):
        fetched = fetch(options.run, config_for_run(options.run), options.host)
    if options.json:
        print_json([encode(run) for run in fetched])
    return 0


def cancel(options: RunOnHostOptions) -> int:
    """
    ci-tasks cancel last
    """
    from ci_tasks.run.attach import cancel
    from ci_tasks.run.hosts_files import config_for_run

    with people_read_stderr(options.json):
        ended = cancel(options.run, config_for_run(options.run), options.host)
        print("\n".join(f"cancelled {run.id}" for run in ended) or "none of its rows was running")
    if options.json:
        print_json([encode(run) for run in ended])
    return 0


@dataclass(frozen=True)
class ShellOptions:
    run: str = ONE_RUN.field()


def shell(options: ShellOptions) -> int:
    """
    ci-tasks shell last                   a running row, or a failed one of `--keep`
    """
    from ci_tasks.run.attach import shell

    return shell(options.run)


@dataclass(frozen=True)
class RetryOptions:
    run: str = ONE_RUN.field()
    keep: bool = switch("keep the container and the workspace also when it passes").field()
    json: bool = JSON.field()
    events: str | None = EVENTS.field()


def retry(options: RetryOptions) -> int:
    """
    ci-tasks remote --host h100a ckpt --only async --keep    it fails; edit the checkout, then:
    ci-tasks retry last                                      the failed step and those after it, where it was kept
    """
    from ci_tasks.run.retry import retry

    def run(events: EventStream | None) -> BatchResult:
        return retry(options.run, keep=options.keep, events=events)

    return run_batch(run, as_json=options.json, events=options.events)


@dataclass(frozen=True)
class ReportOptions:
    run: str = RUN.field(help=f"{RUN.help}; several with commas", commas=True)
    html: str | None = text("write one self-contained HTML page", "FILE").field()
    markdown: bool = switch("print markdown, for GitHub's job summary").field()
    junit: str | None = text("write the rows as JUnit XML", "FILE").field()
    deviations: bool = switch("list all differences from CI, also the ones of the label's last run").field()
    json: bool = JSON.field(excludes=(("markdown", "both would be on standard output", ""),))
    brief: bool = BRIEF.field()


def report(options: ReportOptions) -> int:
    """
    ci-tasks report last
    ci-tasks report last --html report.html                 table, failures, timeline, metrics, logs in one file
    ci-tasks report last --markdown >> $GITHUB_STEP_SUMMARY
    ci-tasks report RUN,RUN --junit report.xml
    ci-tasks report last --brief                            for an assistant

    Exit code 0 whatever the runs did; `attach` ends with their exit code.
    """
    from ci_tasks.run.report_runs import ReportOutputs, report

    names = [name.strip() for name in options.run.split(",") if name.strip()]
    html, junit = (user_path(file) if file else None for file in (options.html, options.junit))
    kinds = (options.markdown, options.brief, options.json, options.deviations)
    result = report(names, ReportOutputs(html, junit, *kinds))
    print_record(result, as_json=options.json)
    return 0
