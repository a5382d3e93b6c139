"""Commands that run a label of the checkout: `run`, `remote`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.given_options import RowOptions, with_given
from ci_tasks.cli.options import Option, switch
from ci_tasks.cli.output import run_batch

if TYPE_CHECKING:
    from ci_tasks.records import BatchResult
    from ci_tasks.run.checkout_source import CheckoutSource
    from ci_tasks.run.events import EventStream
    from ci_tasks.run.request import ExecutionOptions, RunRequest

_DETACHED_ROWS = 4  # CPU rows of a detached run at once: as many as GitHub's runners have cores
_RESUMED_ROWS = "--resume continues the rows of the interrupted command"
_NOT_REPEATED = (
    ("detach", "the client decides after each repetition whether another one is needed", "use tmux or nohup"),
)


@dataclass(frozen=True)
class RunOptions(RowOptions):
    label: str = flags.LABEL.field()
    host: str = Option(
        default="local",
        refused="it always runs on this machine",
        hint="`ci-tasks remote LABEL --host HOST` runs on another host",
    ).field()
    only: str | None = flags.ONLY.field()
    jobs: int | None = flags.JOBS.field()
    fresh_env: bool = flags.FRESH_ENV.field()
    keep: bool = flags.KEEP.field()
    detach: bool = flags.DETACH.field()
    image: str | None = flags.IMAGE.field()
    repeat: int | None = flags.REPEAT.field(
        help="number of repetitions of each row on one tree, to see whether it is flaky",
        excludes=_NOT_REPEATED,
    )
    until_fail: bool = switch(
        "repeat until a row fails, at most 100 or --repeat times",
        nox=True,
        excludes=_NOT_REPEATED,
    ).field()
    fail_fast: bool = switch(
        "cancel the other rows when one fails",
        nox=True,
        excludes=(
            ("detach", "the client has to cancel the other rows", ""),
            ("repeat", "--repeat stops by itself when its result is clear", ""),
        ),
    ).field()
    last_failed: bool = switch(
        "only the rows that did not pass in the last run of the label",
        nox=True,
        excludes=(("only", "--last-failed selects the rows", ""),),
    ).field()
    retry_failed: bool = switch(
        "run a failed row once more; both attempts are reported",
        nox=True,
        excludes=(
            ("detach", "the client has to start the second attempt", ""),
            ("repeat", "--repeat measures how often a row fails", ""),
            ("until_fail", "--until-fail stops at the first failure", ""),
        ),
    ).field()
    resume: bool = switch(
        "continue the last interrupted command of the label",
        nox=True,
        excludes=(
            ("only", _RESUMED_ROWS, ""),
            ("last_failed", _RESUMED_ROWS, ""),
            ("detach", "--resume waits for the results of running rows", ""),
        ),
    ).field()
    prefetch: bool = switch(
        "download the models and datasets of the rows first, as `prefetch` does", feature="prefetch", nox=True
    ).field()
    repo: str | None = flags.REPO.field()
    rev: str | None = flags.REV.field()
    workflow: str | None = flags.WORKFLOW.field()
    base: str | None = flags.BASE.field()
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()


@dataclass(frozen=True)
class RemoteOptions(RunOptions):
    host: str = flags.HOST.field(help="a host or a pool of hosts.yaml; several with commas", required=True)


def run(options: RunOptions) -> int:
    """
    ci-tasks run cpu-unittest
    ci-tasks run cpu-unittest --only metrics,rewards --jobs 4
    ci-tasks run cpu-unittest --last-failed
    ci-tasks run cpu-unittest --only metrics --repeat 20
    ci-tasks run changed                                   tests that you added or modified, as far as they run here
    """
    return run_label(options)


def remote(options: RemoteOptions) -> int:
    """
    ci-tasks remote --host sim ckpt
    ci-tasks remote --host h100a megatron --only ppo
    ci-tasks remote --host h100a,h100b image               on whichever has free GPUs
    ci-tasks remote --host h100a,h100b image --resume      after the laptop was closed
    ci-tasks remote --host h100a image --detach
    ci-tasks remote --host h100a changed                   CPU tests here, the others there
    ci-tasks remote --host h100a ckpt --only async --until-fail --keep
    """
    return run_label(options)


def run_label(options: RunOptions) -> int:
    """Run the rows that the options select. Returns the exit code."""
    return run_batch(lambda events: _run(options, events), as_json=options.json, events=options.events)


def _run(options: RunOptions, events: EventStream | None) -> BatchResult:
    from ci_tasks.records import together
    from ci_tasks.run.checkout_source import open_source
    from ci_tasks.run.hosts_files import open_config

    config = with_given(open_config(options.repo), options)
    config.select_hosts(options.host)  # a wrong name ends it before anything else is loaded
    from ci_tasks.hosts.executors import open_executor
    from ci_tasks.run.changed_label import changed_runs, run_changed
    from ci_tasks.run.label import run

    source = open_source(options.repo, options.rev, options.workflow, config.given)
    request, how = _request(options, source), _how(options, events)
    is_changed = source.suite.is_changed(request.label)
    if options.repeat or options.until_fail:
        repeated_run = registry.load("ci_tasks.trials.command:repeated_run")
        parts = changed_runs(source, request, last_failed=options.last_failed) if is_changed else [request]
        return together(request.label, [repeated_run(source, config, part, how, options) for part in parts])
    if is_changed and not options.resume:
        last_failed = options.last_failed
        return run_changed(source, config, request, how, open_executor=open_executor, last_failed=last_failed)
    return run(source, config, request, how)


def _request(options: RunOptions, source: CheckoutSource) -> RunRequest:
    from ci_tasks.run.request import RunRequest

    label = source.label_of(options.label)
    rows = _last_failed(label, source) if options.last_failed and not source.suite.is_changed(label) else ()
    return RunRequest(
        label, options.only, options.host, options.base, fresh_env=options.fresh_env, keep=options.keep, rows=rows,
        image=options.image, prefetch=options.prefetch, probe=not options.no_probe,
        slots=(options.jobs or _DETACHED_ROWS) if options.detach else 0,
    )  # fmt: skip


def _how(options: RunOptions, events: EventStream | None) -> ExecutionOptions:
    from ci_tasks.run.request import ExecutionOptions

    return ExecutionOptions(
        options.jobs, options.detach, options.resume, options.fail_fast, options.retry_failed, events
    )


def _last_failed(label: str, source: CheckoutSource) -> tuple[str, ...]:
    """The rows that `--last-failed` selects. Raises UsageError if there are none."""
    from ci_tasks.errors import UsageError
    from ci_tasks.records import PASSED
    from ci_tasks.results.history import latest

    last = latest(label, str(source.path))
    hint = "run it without --last-failed"
    if not last:
        raise UsageError(f"no earlier run of label {label} on this checkout", hint=hint)
    rows = tuple(run.row for run in last if run.status != PASSED)
    if not rows:
        raise UsageError(f"every row of {last[0].batch}, the last run of {label}, passed", hint=hint)
    return rows
