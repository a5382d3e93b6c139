"""Commands about existing runs (`runs`, `logs`, `attach`, `fetch`, `cancel`, `shell`, `retry`, `report`), about a
job's log (`triage`), and about hosts (`hosts`, `clean`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.options import number, switch, text
from ci_tasks.cli.shared import people_read_stderr, perform, print_json, print_result
from ci_tasks.errors import EXIT_BLOCKED, UsageError, printable
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.run.hosts_files import ListedHost

_STATUS = "only these statuses: passed, failed, vacuous, …; several with commas (default: all but planned)"
_STATUSES = "ci_tasks.cli.program:statuses"
_TRUST = "apply the overrides of the checkout's own hosts.yaml, until that file changes"
_DAYS = "remove runs older than this: here all, on other hosts only other people's (default there: 14)"
_PASSED = "the log of a passed run of this job: its lines count as normal"
_ALL = "also remove what --keep kept, runs whose results are not fetched, and packages that runs share"
_FLAKES = "count statuses and times of each row on each host, over all matching runs"


@dataclass(frozen=True)
class RunsOptions:
    label: str | None = text("only runs of this label", "LABEL", complete=flags.LABEL.complete).field()
    row: str | None = flags.ONLY.field(complete="", help="only rows whose names contain this; several with commas")
    status: str | None = text(_STATUS, "STATUS", commas=True, complete=_STATUSES).field()
    host: str | None = flags.HOST.field(help="only runs on these hosts; several with commas", hint="", nox=False)
    commit: str | None = text("only runs of the commit with this prefix", "HASH").field()
    since: str | None = text("a date, a time, or how long ago: 2026-11-01, 2026-11-01T18:30, 12h, 3d", "WHEN").field()
    until: str | None = text("the same; a date includes that whole day", "WHEN").field()
    limit: int | None = number("number of runs to list, newest first (default: 20)", "runs").field()
    flakes: bool = switch(_FLAKES, excludes=("limit",)).field()
    json: bool = flags.JSON.field()


def runs(options: RunsOptions) -> int:
    """
    ci-tasks runs --limit 5
    ci-tasks runs --label ckpt --status failed,lost --since 3d
    ci-tasks runs --row async --host h100a --commit 25740fd8
    ci-tasks runs --flakes --label ckpt    for each row: passed, failed, duration, queue time
    ci-tasks runs --json                   their records, for programs
    """
    from ci_tasks.cli.list_runs import show_flakes, show_runs

    words = {name: value for name, value in vars(options).items() if value and name not in ("flakes", "json")}
    return show_flakes(words, json=options.json) if options.flakes else show_runs(words, json=options.json)


@dataclass(frozen=True)
class LogsOptions:
    run: str = flags.ONE_RUN.field()
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
        if not log.copy() and not options.follow:
            raise UsageError(f"{id} has no log: it has not begun", hint=f"`ci-tasks report {id}` says how it is")
        if options.follow:
            from ci_tasks.run.attach import follow_log

            follow_log(id, run, log)
    return 0


@dataclass(frozen=True)
class RunOnHostOptions:
    run: str = flags.RUN.field()
    host: str | None = flags.HOST.field(help="the host of a run that was started from another machine", commas=False)
    json: bool = flags.JSON.field()


@dataclass(frozen=True)
class AttachOptions(RunOnHostOptions):
    events: str | None = flags.EVENTS.field()


def attach(options: AttachOptions) -> int:
    """
    ci-tasks attach last                                 ^C detaches; the runs continue
    ci-tasks attach 20261120-103000-ckpt --host h100a    a colleague's run, from its host
    """
    from ci_tasks.run.attach import attach
    from ci_tasks.run.hosts_files import config_for_run

    return perform(lambda events: attach(options.run, config_for_run(options.run), options.host, events), options)


def fetch(options: RunOnHostOptions) -> int:
    """
    ci-tasks fetch last
    """
    from ci_tasks.run.attach import fetch
    from ci_tasks.run.hosts_files import config_for_run

    with people_read_stderr(options.json):
        fetched = fetch(options.run, config_for_run(options.run), options.host)
    print_json(fetched, when=options.json)
    return 0


def cancel(options: RunOnHostOptions) -> int:
    """
    ci-tasks cancel last
    """
    from ci_tasks.run.attach import cancel
    from ci_tasks.run.hosts_files import config_for_run

    with people_read_stderr(options.json):
        ended = cancel(options.run, config_for_run(options.run), options.host)
        print("\n".join(f"{run.status} {run.id}" for run in ended) or "none of its rows was running")
    print_json(ended, when=options.json)
    return 0


@dataclass(frozen=True)
class ShellOptions:
    run: str = flags.ONE_RUN.field()


def shell(options: ShellOptions) -> int:
    """
    ci-tasks shell last                   a running row, or a failed one of `--keep`
    """
    from ci_tasks.run.attach import shell

    return shell(options.run)


@dataclass(frozen=True)
class RetryOptions:
    run: str = flags.ONE_RUN.field()
    keep: bool = switch("keep the container and workspace even if it passes").field()
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()


def retry(options: RetryOptions) -> int:
    """
    ci-tasks remote --host h100a ckpt --only async --keep    it fails; edit the checkout, then:
    ci-tasks retry last                                      the failed step and those after it, where it was kept
    """
    from ci_tasks.run.label import retry

    return perform(lambda events: retry(options.run, keep=options.keep, events=events), options)


@dataclass(frozen=True)
class ReportOptions:
    run: str = flags.RUN.field(help=f"{flags.RUN.help}; several with commas", commas=True)
    html: str | None = text("write one self-contained HTML page", "FILE").field()
    markdown: bool = switch("print markdown, for GitHub's job summary").field()
    junit: str | None = text("write the rows as JUnit XML", "FILE").field()
    deviations: bool = switch("list all differences from CI, including those known from the label's last run").field()
    json: bool = flags.JSON.field(excludes=("markdown",))
    brief: bool = flags.BRIEF.field()


def report(options: ReportOptions) -> int:
    """
    ci-tasks report last
    ci-tasks report last --html report.html                 table, failures, timeline, metrics, logs in one file
    ci-tasks report last --markdown >> $GITHUB_STEP_SUMMARY
    ci-tasks report RUN,RUN --junit report.xml
    ci-tasks report last --brief                            for an assistant

    Exit code 0, even if a run failed; `attach` ends with the exit code of the runs.
    """
    from ci_tasks.run.report_runs import report

    names = [name.strip() for name in options.run.split(",") if name.strip()]
    html, junit = (user_path(file) if file else None for file in (options.html, options.junit))
    kinds = {"markdown": options.markdown, "brief": options.brief, "quiet": options.json}
    print_json(report(names, html=html, junit=junit, **kinds, deviations=options.deviations), when=options.json)
    return 0


@dataclass(frozen=True)
class TriageOptions:
    log: str | None = flags.positional(flags.FAILED_LOG.help, required=False).field()
    url: str | None = flags.FAILED_URL.field()
    job: str | None = flags.FAILED_JOB.field()
    exit_code: int | None = number("the job's exit code, if the log does not show it", "", minimum=0).field()
    passed: tuple[str, ...] = flags.repeatable(_PASSED, "FILE").field()
    json: bool = flags.JSON.field()
    brief: bool = flags.BRIEF.field()


def triage(options: TriageOptions) -> int:
    """
    ci-tasks triage failed.log
    gh run view 123 --log | ci-tasks triage -
    ci-tasks triage --url https://github.com/OWNER/REPO/actions/runs/1/job/2
    ci-tasks triage failed.log --passed yesterday.log --exit-code 1
    ci-tasks triage failed.log --brief            for an assistant
    """
    from ci_tasks.logs.job_log import from_file, from_url
    from ci_tasks.logs.triage.log_triage import together
    from ci_tasks.report import brief
    from ci_tasks.report.triage import describe
    from ci_tasks.safe_output import terminal_width

    known: dict[str, Any] = {"exit_code": options.exit_code, "passed": options.passed}
    if options.url:
        analysed = from_url(options.url, **known)
    elif options.log:
        analysed = from_file(options.log, options.job, **known)
    else:
        raise UsageError("triage needs LOG, or --url URL", hint="`ci-tasks triage --help` has examples")
    found = together([(one.job.job_name, one.triage) for one in analysed])
    source, more = options.url or options.log or "", " --host HOST" * any(one.job.takes_gpus for one in analysed)
    more += " --on-my-tree --label LABEL --only ROW" * (not any(one.job.commit for one in analysed))
    if options.json:
        print_json(found, versioned=False)
    elif options.brief:
        print(brief.triage(found, source if options.url else analysed[0].name, more), end="")
    else:
        print("\n".join(describe(found, terminal_width(), source, more)))
        if options.url and found.signature and (history := registry.hook("ci_history")):
            print("\n".join(history(options.url, found)))
    return 0


@dataclass(frozen=True)
class HostsOptions:
    json: bool = flags.JSON.field()
    trust: bool = switch(_TRUST, excludes=("json",)).field()
    repo: str | None = flags.REPO.field()


def hosts(options: HostsOptions) -> int:
    """
    ci-tasks hosts                    hosts and overrides, and the files that they come from
    ci-tasks hosts --json             with file and line of each key
    CI_TASKS_HOSTS=mine.yaml ci-tasks hosts
    ci-tasks hosts --trust            for a hosts.yaml that is part of the checkout
    """
    from ci_tasks.run.hosts_files import list_hosts, open_config, trust

    if options.trust:
        file, text = trust(options.repo)
        shown = printable(text.replace("\r\n", "\n").rstrip())  # a carriage return could hide a line of it
        print(f"{shown}\n\ntrusted: {file}, until its content changes; only its overrides apply")
        return 0
    config = open_config(options.repo)
    listed = list_hosts(config)
    print_result([asdict(host) for host in listed], lambda: _tables(config, listed), as_json=options.json)
    return 0


def _tables(config: Config, listed: list[ListedHost]) -> list[str]:
    from ci_tasks.report.table import Table
    from ci_tasks.safe_output import terminal_width

    body = []
    for host in listed:
        gpus = ("as found" if host.gpus is None else str(host.gpus)) + (" (simulated)" if host.simulate else "")
        files = dict.fromkeys(source.rpartition(":")[0] or source for source in host.sources.values())
        body.append((host.name, host.kind, host.address or "-", host.runtime, gpus, ", ".join(files)))
    lines = Table(body, ("HOST", "KIND", "ADDRESS", "RUNTIME", "GPUS", "FROM")).text(terminal_width())
    for host in listed:
        if host.kept is not None:
            closes = f"`ci-tasks clean --host {host.name}` closes it"
            lines.append(f"{host.name}: process {host.kept.pid} keeps a connection; {closes}")
    lines += [f"pool {name}: {', '.join(members)}" for name, members in config.pools.items()]
    keys = ("run", "skip", "with_", "pip_index", "replace")
    overrides = [
        (each.job, each.step, ", ".join(key.rstrip("_") for key in keys if getattr(each, key)), each.source)
        for each in config.overrides
    ]
    if overrides:
        lines += ["", *Table(overrides, ("OVERRIDE OF JOB", "STEP", "CHANGES", "FROM")).text(terminal_width())]
    return lines


@dataclass(frozen=True)
class CleanOptions:
    host: str = flags.HOST.field(default="local", commas=False)
    days: float | None = flags.Option(_DAYS, float, None, "N", "days").field()
    all: bool = switch(_ALL).field()
    json: bool = flags.JSON.field()


def clean(options: CleanOptions) -> int:
    """
    ci-tasks clean --host h100a           running rows are never touched
    ci-tasks clean --days 30              older run directories on this machine
    """
    from ci_tasks.run.clean import clean
    from ci_tasks.run.hosts_files import open_config

    with people_read_stderr(options.json):
        cleaned = clean(open_config(), options.host, days=options.days, everything=options.all)
    print_json(cleaned, when=options.json)
    return EXIT_BLOCKED if any(run.left for run in cleaned) else 0
