"""Commands about a job that failed: `triage`, `reproduce`, `compare`, `bisect`, and `run --repeat`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.codec import encode
from ci_tasks.cli.given_options import OverlayOptions, with_given
from ci_tasks.cli.options import (
    BASE,
    BRIEF,
    EVENTS,
    HOST,
    IMAGE,
    JSON,
    KEEP,
    LABEL,
    ONE_RUN,
    ONLY,
    REPEAT,
    REPO,
    REV,
    WORKFLOW,
    number,
    positional,
    repeatable,
    switch,
    text,
)
from ci_tasks.cli.output import for_programs, print_json, print_record
from ci_tasks.errors import UsageError

if TYPE_CHECKING:
    from ci_tasks.cli.commands.run import RunOptions
    from ci_tasks.config import Config
    from ci_tasks.features.failures.bisection.bisection import BisectionResult
    from ci_tasks.features.failures.comparison.result import ComparisonResult
    from ci_tasks.features.failures.reproduction.verdicts import ReproductionResult
    from ci_tasks.records import BatchResult
    from ci_tasks.run.checkout_source import CheckoutSource
    from ci_tasks.run.events import EventStream
    from ci_tasks.run.request import RunRequest
    from ci_tasks.run.row_execution import ExecutionOptions

_UNTIL_FAIL_LIMIT = 100
_LOG = text("a saved job log, the zip of a run, or - for what is piped in (`gh run view RUN --log-failed`)", "FILE")
_JOB = text("which job, where the log holds several", "JOB")
_ATTEMPT = number("which attempt, where the log holds several (else the last)", "")
_URL = text(
    "a failed job, run or pull request on GitHub; GH_TOKEN or `gh auth login` gives access",
    "URL",
    excludes=(
        ("log", "both name the failed job", "leave one of them out"),
        ("attempt", "the URL names the attempt", "…/actions/runs/RUN/attempts/N is one"),
        ("job", "the URL names the job", "…/actions/runs/RUN/job/JOB is one"),
    ),
)
_HERE = replace(HOST, default="local", commas=False)


@dataclass(frozen=True)
class TriageOptions:
    log: str | None = positional(_LOG.help, required=False).field()
    url: str | None = _URL.field()
    job: str | None = _JOB.field()
    attempt: int | None = _ATTEMPT.field()
    exit_code: int | None = number("the job's exit code, where the log does not say it", "", minimum=0).field()
    passed: tuple[str, ...] = repeatable(
        "a log of a run of this job that passed: its lines are normal; may be repeated", "FILE"
    ).field()
    json: bool = JSON.field()
    brief: bool = BRIEF.field()


def triage(options: TriageOptions) -> int:
    """
    ci-tasks triage failed.log
    gh run view 123 --log-failed | ci-tasks triage -
    ci-tasks triage --url https://github.com/OWNER/REPO/actions/runs/1/job/2
    ci-tasks triage failed.log --passed yesterday.log --exit-code 1
    ci-tasks triage failed.log --brief            for an assistant
    """
    from ci_tasks.features.ci_logs.job_log import from_file, from_url
    from ci_tasks.features.failures.reproduction.reproduce import show_triage

    known: dict[str, Any] = {"exit_code": options.exit_code, "passed": options.passed}
    if options.url:
        analysis = from_url(options.url, **known)
    elif options.log:
        analysis = from_file(options.log, options.job, attempt=options.attempt, **known)
    else:
        raise UsageError("triage needs LOG, or --url URL", hint="`ci-tasks triage --help` has examples")
    if options.json:
        print_json(encode(analysis.triage, versioned=False))
        return 0
    return show_triage(analysis, brief=options.brief)


@dataclass(frozen=True)
class HangOptions:
    run: str = ONE_RUN.field()
    json: bool = JSON.field()
    brief: bool = BRIEF.field()


def hang(options: HangOptions) -> int:
    """
    ci-tasks hang last                    which rank is where, and whom the others wait for
    ci-tasks hang last --brief            for an assistant
    ci-tasks hang last --json
    """
    from ci_tasks.features.failures.hang.analysis import EXIT_CODES, analyse_hang
    from ci_tasks.features.failures.hang.report import ended_hang, ended_note, hang_lines
    from ci_tasks.report import brief
    from ci_tasks.results.one_run import RUNS, find_one
    from ci_tasks.run.look import look_at, look_of_ended
    from ci_tasks.safe_output import terminal_width

    id, run = find_one(options.run, RUNS)
    ended = look_of_ended(run)
    result = analyse_hang(look_at(run)) if ended is None else ended_hang(ended)
    note = "" if ended is None else ended_note(ended)
    if options.json:
        print_json(encode(result, versioned=False))
    elif options.brief:
        print(brief.hang(result, id, note), end="")
    else:
        print("\n".join(hang_lines(result, id, run.hang_stacks, note, terminal_width())))
    return EXIT_CODES[result.outcome]


@dataclass(frozen=True)
class ReproduceOptions(OverlayOptions):
    log: str | None = _LOG.field()
    url: str | None = _URL.field()
    job: str | None = _JOB.field()
    attempt: int | None = _ATTEMPT.field()
    host: str = _HERE.field()
    on_my_tree: bool = switch(
        "run the working tree instead of CI's commit, to show that it is fixed",
        excludes=(("rev", "they name two trees", ""),),
    ).field()
    repeat: int | None = REPEAT.field(help=f"{REPEAT.help}; one equal failure is enough")
    label: str | None = text("the label, where the log does not say it", "LABEL", complete=LABEL.complete).field()
    only: str | None = ONLY.field(help="the row, where the log does not say it")
    base: str | None = BASE.field(help="then compare with this revision: is the failure new?", nox=False)
    rev: str | None = REV.field(help="the commit, where the log does not say it or another one is meant")
    image: str | None = IMAGE.field(help="run in this container image instead of the one that CI ran")
    keep: bool = KEEP.field()
    repo: str | None = REPO.field()
    workflow: str | None = WORKFLOW.field()
    json: bool = JSON.field()
    events: str | None = EVENTS.field()


def reproduce(options: ReproduceOptions) -> int:
    """
    ci-tasks reproduce --url https://github.com/OWNER/REPO/actions/runs/1/job/2 --host h100a
    gh run view 123 --log-failed | ci-tasks reproduce --log - --host h100a
    ci-tasks reproduce --log failed.log --host h100a --on-my-tree      is it fixed?
    ci-tasks reproduce --log failed.log --host h100a --base origin/main   is it the change, or was it there before?
    """
    from ci_tasks.features.ci_logs import job_log as ci_log
    from ci_tasks.features.failures.reproduction.reproduce import reproduce
    from ci_tasks.run.hosts_files import open_config

    if not (options.log or options.url):
        raise UsageError(
            "reproduce needs --log FILE, --log - or --url URL", hint="`ci-tasks reproduce --help` has examples"
        )
    config = with_given(open_config(options.repo), options)
    config.host(options.host)  # before anything is downloaded
    if options.url:
        log = ci_log.from_url(options.url)
    else:
        log = ci_log.from_file(options.log or "-", options.job, attempt=options.attempt)
    return _performed(options, lambda events: reproduce(log, config, options, events))


@dataclass(frozen=True)
class CompareOptions(OverlayOptions):
    label: str = LABEL.field()
    only: str | None = ONLY.field()
    base: str | None = BASE.field(
        help="the revision to compare with (else where HEAD and origin/main, or main, part)", nox=False
    )
    host: str = _HERE.field()
    max_runs: int | None = number(
        "number of new runs of a row, of both sides together, after which it cannot tell (else 20)",
        "runs",
        minimum=6,
        hint="three runs of each side are the fewest that show a difference, as with --max-runs 20",
    ).field()
    image: str | None = IMAGE.field()
    repo: str | None = REPO.field()
    workflow: str | None = WORKFLOW.field()
    json: bool = JSON.field()
    events: str | None = EVENTS.field()


def compare(options: CompareOptions) -> int:
    """
    ci-tasks compare ckpt --only async-save --host h100a               is the failure yours?
    ci-tasks compare ckpt --host h100a                                 a table of all rows
    ci-tasks compare ckpt --only async-save --base HEAD~3 --host h100a --max-runs 40
    """
    from ci_tasks.features.failures.comparison.compare import compare
    from ci_tasks.run.hosts_files import open_config

    config = with_given(open_config(options.repo), options)
    return _performed(options, lambda events: compare(options, config, events))


_BISECT = "`ci-tasks bisect LABEL --only ROW --good REV [--bad REV]`; `ci-tasks jobs` lists the rows"
_BISECT_IMAGES = (
    "`ci-tasks bisect LABEL --only ROW --axis image --images OLDEST,…,NEWEST`, or `--good NAME:TAG --bad NAME:TAG`"
)

_BISECT_ENV = (
    "each a run of the row, or a file as `env` or `pip freeze` prints it: of where it passes, and of where it fails"
)

_BISECT_DIFF = "`--axis diff` stands alone; `ci-tasks diff GOOD_RUN BAD_RUN` shows what it would search"


@dataclass(frozen=True)
class BisectOptions(OverlayOptions):
    label: str = LABEL.field()
    only: str = ONLY.field(
        help="the row's name, or a part that no other row has", metavar="ROW", commas=False, required=True, hint=_BISECT
    )
    axis: str = text(
        "what to search: commit; or, with one commit of the checkout, image, submodule:PATH, overlay:NAME of --with, "
        "or env or packages, the variables or packages of two environments; several with commas, one after the other; "
        "or diff, all that differ between two runs",
        "AXIS",
        default="commit",
    ).field()
    good: str | None = text(
        "a revision where the row passes, or a run; with --axis image an image, with env and packages a run or a file",
        "REV",
    ).field()
    bad: str | None = text(
        "one where it fails, always or now and then (else HEAD, or the last of --images)", "REV"
    ).field()
    images: str | None = text(
        "with --axis image: images from the oldest to the newest, with commas, or a file with one in each line; "
        "by digest, since tags move (else what the registry has from --good to --bad)",
        "LIST",
        excludes=(("image", "the search replaces the image", "leave --image away"),),
    ).field()
    rev: str | None = REV.field(help="with another axis than commit: the commit that runs (else HEAD)")
    host: str = HOST.field(help="hosts of hosts.yaml with commas, each runs one commit at a time", default="local")
    repeat: int | None = REPEAT.field(
        help="least number of runs of a commit that passes (else as many as the failure rate asks for)"
    )
    signature: str | None = text(
        "the failure to look for, as `triage` names it (else the one seen most at --bad)", "TEXT"
    ).field()
    metric: str | None = text(
        "search for where this metric got worse, instead of for a failure; `seconds` is how long the row took",
        "NAME",
        excludes=(("signature", "a metric is searched for, or a failure", ""),),
    ).field()
    worse: str | None = text("with --metric: by how much it got worse, at least, such as 10%", "SHARE").field()
    first_parent: bool = switch("treat a merge as one commit").field()
    resume: bool = switch(
        "go on with an earlier bisection; the same command does so anyway",
        excludes=(("fresh", "one keeps what the other forgets", ""),),
    ).field()
    fresh: bool = switch("start again, without the results so far").field()
    image: str | None = IMAGE.field()
    repo: str | None = REPO.field()
    workflow: str | None = WORKFLOW.field()
    json: bool = JSON.field()
    events: str | None = EVENTS.field()


def bisect(options: BisectOptions) -> int:
    """
    ci-tasks bisect cpu-unittest --only rewards --good v1.2 --bad main
    ci-tasks bisect ckpt --only async-save --good HEAD~64 --host h100a,h100b
    ci-tasks bisect ckpt --only async-save --good HEAD~64 --host h100a --resume
    ci-tasks bisect ckpt --only async-save --axis image --images images.txt --host h100a     one image in each line
    ci-tasks bisect ckpt --only async-save --axis image --good team/slime:0101 --bad team/slime:0301 --host h100a
    ci-tasks bisect ckpt --only async-save --axis submodule:3rdparty/Megatron-LM --good v0.5 --host h100a
    ci-tasks bisect ckpt --only async-save --axis overlay:sglang --with sglang=~/sglang --good v0.5.3 --host h100a
    ci-tasks bisect ckpt --only async-save --good HEAD~64 --metric step_time --worse 10% --host h100a
    ci-tasks bisect ckpt --only async-save --axis env --good GREEN_RUN --bad RED_RUN --host h100a
    ci-tasks bisect ckpt --only async-save --axis env --good ci.env --bad mine.env     two files, as `env` prints them
    ci-tasks bisect ckpt --only async-save --axis packages --good ci.txt --bad mine.txt     as `pip freeze` prints them
    ci-tasks bisect ckpt --only async-save --axis diff --good GREEN_RUN --bad RED_RUN --host h100a     all that differs
    """
    from ci_tasks.features.failures.bisection.several_axes import bisect_axes, run_ends

    axes = [axis.strip() for axis in options.axis.split(",") if axis.strip()]
    ends = run_ends(options)
    for axis in axes or [options.axis]:
        _check_axis(axis, ends.options(options, axis) if ends and axis != "diff" else options, alone=len(axes) == 1)
    hosts = tuple(name for name in (part.strip() for part in options.host.split(",")) if name)
    if not hosts:
        raise UsageError("--host needs the name of a host", hint=HOST.hint)
    _check_metric(options, hosts)
    from ci_tasks.run.hosts_files import open_config

    return _performed(
        options,
        lambda events: bisect_axes(axes, options, hosts, with_given(open_config(options.repo), options), events),
    )


def _check_axis(axis: str, options: BisectOptions, *, alone: bool) -> None:
    """Whether the options have what the axis needs, and `alone` nothing that is for another one. Raises UsageError."""
    is_tree = axis.startswith(("overlay:", "submodule:"))
    if axis not in ("commit", "image", "env", "packages", "diff") and not is_tree:
        valid = "commit, image, env, packages, submodule:PATH, overlay:NAME, or diff; several with commas"
        raise UsageError(f"invalid value {axis!r} for --axis", hint=f"valid: {valid}")
    refused: dict[str, object] = {}
    if axis == "diff":
        _require(alone and options.good and options.bad, "--good RUN and --bad RUN", _BISECT_DIFF)
        refused = {"--images": options.images}
    elif is_tree:
        whose = "the overlay's tree" if axis.startswith("overlay:") else "the checkout"
        _require(options.good, "--good REV", f"a revision of {whose} with which the row passes")
        refused = {"--images": options.images}
    elif axis == "commit":
        _require(options.good, "--good REV", _BISECT)
        refused = {"--images": options.images, "--rev": options.rev}
    elif axis in ("env", "packages"):
        _require(options.good and options.bad, "--good and --bad", _BISECT_ENV)
        refused = {"--images": options.images, "--first-parent": options.first_parent}
        if axis == "packages":
            _refuse("--axis packages", {"--no-probe": options.no_probe})
    else:
        _require(options.images or (options.good and options.bad), "--images LIST, or --good and --bad", _BISECT_IMAGES)
        refused = {"--first-parent": options.first_parent}
    if alone:
        _refuse(f"--axis {axis}", refused)


def _check_metric(options: BisectOptions, hosts: tuple[str, ...]) -> None:
    from ci_tasks.features.failures.bisection.metric import worse_of

    if not options.metric and not options.worse:
        return
    if not (options.metric and options.worse):
        raise UsageError("--metric and --worse need each other", hint="for example --metric step_time --worse 10%")
    worse_of(options.worse)
    if len(hosts) > 1:
        raise UsageError(
            f"--metric is for one host, and --host names {len(hosts)}",
            hint="values of different machines differ for reasons of their own",
        )


def _performed(
    options: ReproduceOptions | CompareOptions | BisectOptions,
    perform: Callable[[EventStream | None], ReproductionResult | ComparisonResult | BisectionResult],
) -> int:
    """Perform it with what --json and --events ask for. Returns the exit code."""
    with for_programs(as_json=options.json, events=options.events) as events:
        result = perform(events)
        if events:
            events.exit_code = result.exit_code
    print_record(result, as_json=options.json)
    return result.exit_code


def _require(value: object, flag: str, hint: str) -> None:
    if not value:
        raise UsageError(f"bisect needs {flag}", hint=hint)


def _refuse(axis: str, given: dict[str, object]) -> None:
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} and {axis} cannot be combined", hint="`ci-tasks bisect --help` has examples")


def repeated_run(
    source: CheckoutSource, config: Config, request: RunRequest, how: ExecutionOptions, options: RunOptions
) -> BatchResult:
    """`run --repeat` and `--until-fail`."""
    from ci_tasks.features.failures.repeats import repeat_label
    from ci_tasks.features.failures.repeats.outcomes import RepeatLimit

    if options.keep and not options.until_fail:
        raise UsageError(
            "--repeat and --keep cannot be combined: a container and a workspace of every failure would be kept",
            hint="with --until-fail, those of the first failure are kept",
        )
    limit = RepeatLimit(options.repeat or _UNTIL_FAIL_LIMIT, options.until_fail)
    return repeat_label.repeat(source, config, request, limit, how)
