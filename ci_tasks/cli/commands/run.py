"""Commands that run a label of the checkout: `run`, `remote`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli.given_options import RowOptions, with_given
from ci_tasks.cli.options import Option, not_with, switch
from ci_tasks.cli.output import run_batch

if TYPE_CHECKING:
    from ci_tasks.records import BatchResult
    from ci_tasks.run.checkout_source import CheckoutSource
    from ci_tasks.run.events import EventStream

_DETACHED_ROWS = 4  # CPU rows of a detached run at once: as many as GitHub's runners have cores
_FAIL_FAST = "cancel the other rows when one fails"
_LAST_FAILED = "only the rows that did not pass in the last run of the label"
_RETRY_FAILED = "run a failed row once more; both attempts are reported"
_PREFETCH = "download the models and datasets of the rows first, as `prefetch` does"
_HERE = Option(
    default="local",
    refused="it always runs on this machine",
    hint="`ci-tasks remote LABEL --host HOST` runs on another host",
)


@dataclass(frozen=True)
class RunOptions(RowOptions):
    label: str = flags.LABEL.field()
    host: str = _HERE.field()
    only: str | None = flags.ONLY.field()
    jobs: int | None = flags.JOBS.field()
    fresh_env: bool = flags.FRESH_ENV.field()
    keep: bool = flags.KEEP.field()
    detach: bool = flags.DETACH.field()
    image: str | None = flags.IMAGE.field()
    repeat: int | None = flags.REPEAT.field(
        help="number of repetitions of each row on one tree, to see whether it is flaky", excludes=not_with("detach")
    )
    until_fail: bool = switch(
        "repeat until a row fails, at most 100 or --repeat times", nox=True, excludes=not_with("detach")
    ).field()
    fail_fast: bool = switch(_FAIL_FAST, nox=True, excludes=not_with("detach", "repeat")).field()
    last_failed: bool = switch(_LAST_FAILED, nox=True, excludes=not_with("only")).field()
    retry_failed: bool = switch(_RETRY_FAILED, nox=True, excludes=not_with("detach", "repeat", "until_fail")).field()
    resume: bool = switch(
        "continue the last interrupted command of the label",
        nox=True,
        excludes=not_with("only", "last_failed", "detach"),
    ).field()
    prefetch: bool = switch(_PREFETCH, feature="prefetch", nox=True).field()
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
    from ci_tasks.run.checkout_source import ExecutionOptions, RunRequest
    from ci_tasks.run.label import changed_runs, run

    source = open_source(options.repo, options.rev, options.workflow, config.given)
    print(source.headline, flush=True)
    label = source.label_of(options.label)
    rows = _last_failed(label, source) if options.last_failed else ()
    slots = (options.jobs or _DETACHED_ROWS) if options.detach else 0
    request = RunRequest(
        label, options.only, options.host, options.base, fresh_env=options.fresh_env, keep=options.keep, rows=rows,
        image=options.image, prefetch=options.prefetch, probe=not options.no_probe, slots=slots,
    )  # fmt: skip
    retry_failed = options.retry_failed
    how = ExecutionOptions(options.jobs, options.detach, options.resume, options.fail_fast, retry_failed, events)
    repeats = bool(options.repeat or options.until_fail)
    is_changed = source.suite.is_changed(label) and not rows and (repeats or not options.resume)
    parts = changed_runs(source, request) if is_changed else [request]
    if repeats:
        repeat, often = registry.load("ci_tasks.trials.repeat:repeat"), (options.repeat, options.until_fail)
        return together(label, [repeat(source, config, part, *often, how) for part in parts])
    return run(source, config, parts, how)


def _last_failed(label: str, source: CheckoutSource) -> tuple[str, ...]:
    """The rows that `--last-failed` selects. Raises UsageError if there are none."""
    from ci_tasks.errors import UsageError
    from ci_tasks.records import PASSED
    from ci_tasks.results.history import latest

    last = latest(label, str(source.path))
    rows = tuple(run.row for run in last if run.status != PASSED)
    if not rows:
        passed = f"every row of {last[0].batch}, the last run of {label}, passed" if last else ""
        message = passed or f"no earlier run of label {label} on this checkout"
        raise UsageError(message, hint="run it without --last-failed")
    return rows
