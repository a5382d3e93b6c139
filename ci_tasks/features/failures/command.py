"""Commands about a job that failed: `triage`, `reproduce`, `compare`, `bisect`, and `run --repeat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.codec import encode
from ci_tasks.cli.given_options import with_given
from ci_tasks.cli.output import for_programs, print_json, print_record
from ci_tasks.errors import UsageError
from ci_tasks.features.failures.options import (
    BISECT_EXAMPLE,
    BisectOptions,
    CompareOptions,
    ReproduceOptions,
    TriageOptions,
)

if TYPE_CHECKING:
    from ci_tasks.cli.commands.run import RunOptions
    from ci_tasks.config import Config
    from ci_tasks.features.failures.bisection.bisection import BisectionResult
    from ci_tasks.features.failures.comparison.result import ComparisonResult
    from ci_tasks.features.failures.reproduction.verdicts import ReproductionResult
    from ci_tasks.records import BatchResult
    from ci_tasks.run.checkout_source import CheckoutSource
    from ci_tasks.run.events import EventStream
    from ci_tasks.run.request import ExecutionOptions, RunRequest

_UNTIL_FAIL_LIMIT = 100


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
    return 0


def reproduce(options: ReproduceOptions) -> int:
    """
    ci-tasks reproduce --url https://github.com/OWNER/REPO/actions/runs/1/job/2 --host h100a
    gh run view 123 --log-failed | ci-tasks reproduce --log - --host h100a
    ci-tasks reproduce --log failed.log --host h100a --on-my-tree      is it fixed?
    ci-tasks reproduce --log failed.log --host h100a --base origin/main   is it the change, or was it there before?
    """
    from ci_tasks.features.failures.reproduction.reproduce import reproduce
    from ci_tasks.logs import job_log as ci_log
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


_BISECT_AXES = ("commit", "image", "submodule:PATH", "overlay:NAME")


def bisect(options: BisectOptions) -> int:
    """
    ci-tasks bisect cpu-unittest --only rewards --good v1.2 --bad main
    ci-tasks bisect ckpt --only async-save --good HEAD~64 --host h100a,h100b
    ci-tasks bisect ckpt --only async-save --good HEAD~64 --host h100a --resume
    ci-tasks bisect ckpt --only async-save --axis image --images images.txt --host h100a     one image in each line
    ci-tasks bisect ckpt --only async-save --axis submodule:3rdparty/Megatron-LM --good v0.5 --host h100a
    ci-tasks bisect ckpt --only async-save --axis overlay:sglang --with sglang=~/sglang --good v0.5.3 --host h100a
    """
    from ci_tasks.features.failures.bisection.bisect import bisect
    from ci_tasks.run.hosts_files import open_config

    _check_axis(options)
    hosts = tuple(name for name in (part.strip() for part in options.host.split(",")) if name)
    return _performed(
        options, lambda events: bisect(options, hosts, with_given(open_config(options.repo), options), events)
    )


def _check_axis(options: BisectOptions) -> None:
    """Whether the options have what the axis needs, and nothing that is for another one. Raises UsageError."""
    axis = options.axis
    is_tree = axis.startswith(("overlay:", "submodule:"))
    if axis not in ("commit", "image") and not is_tree:
        raise UsageError(f"invalid value {axis!r} for --axis", hint=f"valid: {', '.join(_BISECT_AXES)}")
    if axis == "image":
        hint = "`ci-tasks bisect LABEL --only ROW --axis image --images OLDEST,…,NEWEST`"
        _require(options.images, "--images LIST", hint)
        _refuse(axis, {"--first-parent": options.first_parent})
        return
    whose = "the overlay's tree" if axis.startswith("overlay:") else "the checkout"
    _require(
        options.good, "--good REV", f"a revision of {whose} with which the row passes" if is_tree else BISECT_EXAMPLE
    )
    _refuse(axis, {"--images": options.images, "--rev": None if is_tree else options.rev})


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
            raise UsageError(
                f"{flag} and --axis {axis} cannot be combined", hint="`ci-tasks bisect --help` has examples"
            )


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
