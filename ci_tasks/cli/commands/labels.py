"""Commands about a label of the checkout: `jobs`, `plan`, `run`, `remote`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli import options as flags
from ci_tasks.cli import shared
from ci_tasks.cli.options import number, switch, text
from ci_tasks.errors import UsageError

if TYPE_CHECKING:
    from ci_tasks.records import BatchResult
    from ci_tasks.run.checkout_source import CheckoutSource, RunRequest
    from ci_tasks.run.events import EventStream

_CHANGED = "list which labels of all workflows a pull request with your changes would start, and why the others not"
_DETACHED_ROWS = 4  # CPU rows of a detached run at once: as many as GitHub's runners have cores
_HOSTS = "a host or a pool of hosts.yaml; several with commas"
_JOBS = "number of rows at once on a host (default: one per core, 4 with --detach, or as many as the GPUs allow)"
_REPEAT = "number of repetitions of each row on one tree, to find flaky rows"
_UNTIL_FAIL = "repeat until a row fails, at most 100 or --repeat times"
_LAST_FAILED = "only the rows that did not pass in the last run of the label"
_RETRY_FAILED = "run a failed row once more; both attempts are reported"
_RESUME = "continue the last interrupted command of the label"
_PREFETCH = "download the models and datasets of the rows first, as `prefetch` does"


@dataclass(frozen=True)
class JobsOptions(shared.GivenOptions, shared.CheckoutOptions):
    label: str | None = flags.LABEL.field(help="only this label", required=False)
    json: bool = flags.JSON.field()
    run_needs: bool = flags.RUN_NEEDS.field()
    changed: bool = switch(_CHANGED, excludes=("label", "workflow")).field()
    base: str | None = flags.BASE.field()


def jobs(options: JobsOptions) -> int:
    """
    ci-tasks jobs                     every row of the checkout
    ci-tasks jobs ckpt --json         one label, for programs
    ci-tasks jobs --rev v0.2.2        at another revision
    ci-tasks jobs --changed           what a pull request with your changes would start

    Executes nothing of the checkout. If the outputs of another job decide the rows, they are not listed: --run-needs
    runs that job's steps here.
    """
    from ci_tasks.report import jobs as tables
    from ci_tasks.run.find_rows import list_jobs, why_no_rows
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.safe_output import terminal_width
    from ci_tasks.workflow.model import JobRow

    if options.changed:
        from ci_tasks.run.find_rows import started_labels

        given = shared.with_given(open_config(options.repo), options).given
        compared, labels = started_labels(options.repo, options.rev, options.base, given)
        shared.print_result(labels, lambda: tables.started(compared, labels, terminal_width()), as_json=options.json)
        return 0
    _, source = shared.open_checkout(options)
    label = source.label_of(options.label) if options.label else None
    rows = list_jobs(source, label, options.base, run_needs=options.run_needs)

    def lines() -> list[str]:
        table = tables.jobs(rows, terminal_width()) if rows else [why_no_rows(source, label or "", options.base)]
        if label and any(row.dynamic for row in rows):
            table += ["an output of another job decides some rows: --run-needs runs that job here, --output sets it"]
        return [source.headline, *table]

    shared.print_result([JobRow.of(row).public() for row in rows], lines, as_json=options.json)
    return 0


@dataclass(frozen=True)
class PlanOptions(shared.OverlayOptions, shared.CheckoutOptions):
    label: str = flags.LABEL.field()
    only: str | None = flags.ONLY.field()
    host: str = flags.HOST.field(default="local", commas=False)
    json: bool = flags.JSON.field()
    out: str | None = text("write the run directories into this new directory", "DIR").field()
    run_needs: bool = flags.RUN_NEEDS.field()
    base: str | None = flags.BASE.field()


def plan(options: PlanOptions) -> int:
    """
    ci-tasks plan ckpt --only async-save --host sim --out /tmp/plan
    ci-tasks plan ckpt --var REGISTRY=ghcr.io/me      what only GitHub knows
    ci-tasks plan ckpt --with sglang=~/sglang --out /tmp/plan
    bash /tmp/plan/01/run.sh

    Executes nothing of the checkout, unless --run-needs runs the job whose outputs decide the rows.
    """
    from pathlib import Path

    from ci_tasks.report import lists
    from ci_tasks.run.checkout_source import RunRequest
    from ci_tasks.run.find_rows import why_no_rows
    from ci_tasks.run.label import plan
    from ci_tasks.safe_output import terminal_width

    config, source = shared.open_checkout(options)
    out = Path(options.out) if options.out else None
    label = source.label_of(options.label)
    asked = (label, options.only, options.host, options.base, out)
    request = RunRequest(*asked, run_needs=options.run_needs, probe=not options.no_probe)
    plans = plan(source, config, request, makes_on_host=not options.json)

    def lines() -> list[str]:
        here = config.host(options.host).kind == "local"
        table = lists.plans(plans, terminal_width(), here=here) if plans else [why_no_rows(source, label, options.base)]
        table += ["", "`run changed` runs tests of CPU labels as rows of these"] * source.suite.is_changed(label)
        return [source.headline, *table]

    shared.print_result(plans, lines, as_json=options.json, versioned=True)
    return 0


@dataclass(frozen=True)
class RunOptions(shared.RowOptions, shared.CheckoutOptions):
    label: str = flags.LABEL.field()
    host: str = flags.HOST.field(help=_HOSTS, default="local")
    only: str | None = flags.ONLY.field()
    jobs: int | None = number(_JOBS, "rows", nox=True).field()
    fresh_env: bool = switch("install all packages again instead of reusing those of earlier runs", nox=True).field()
    keep: bool = flags.KEEP.field()
    detach: bool = flags.DETACH.field()
    image: str | None = flags.IMAGE.field()
    repeat: int | None = flags.REPEAT.field(help=_REPEAT, excludes=("detach",))
    until_fail: bool = switch(_UNTIL_FAIL, nox=True, excludes=("detach",)).field()
    fail_fast: bool = switch("cancel the other rows when one fails", nox=True, excludes=("detach", "repeat")).field()
    last_failed: bool = switch(_LAST_FAILED, nox=True, excludes=("only",)).field()
    retry_failed: bool = switch(_RETRY_FAILED, nox=True, excludes=("detach", "repeat", "until_fail")).field()
    resume: bool = switch(_RESUME, nox=True, excludes=("last_failed", "detach")).field()
    prefetch: bool = switch(_PREFETCH, feature="prefetch", nox=True).field()
    base: str | None = flags.BASE.field()
    json: bool = flags.JSON.field()
    events: str | None = flags.EVENTS.field()


@dataclass(frozen=True)
class RemoteOptions(RunOptions):
    host: str = flags.HOST.field(help=_HOSTS, required=True)


def run(options: RunOptions) -> int:
    """
    ci-tasks run cpu-unittest
    ci-tasks run cpu-unittest --only metrics,rewards --jobs 4
    ci-tasks run cpu-unittest --last-failed
    ci-tasks run cpu-unittest --only metrics --repeat 20
    ci-tasks run changed                                   tests that you added or modified, if they can run here
    """
    return run_label(options)


def remote(options: RemoteOptions) -> int:
    """
    ci-tasks remote --host sim ckpt
    ci-tasks remote --host h100a megatron --only ppo
    ci-tasks remote --host h100a,h100b image               on whichever has free GPUs
    ci-tasks remote --host h100a,h100b image --resume      continue after a closed laptop
    ci-tasks remote --host h100a image --detach
    ci-tasks remote --host h100a changed                   CPU tests here, the others there
    ci-tasks remote --host h100a ckpt --only async --until-fail --keep
    """
    return run_label(options)


def run_label(options: RunOptions) -> int:
    """Run the rows that the options select. Returns the exit code."""
    return shared.perform(lambda events: _run(options, events), options)


def _run(options: RunOptions, events: EventStream | None) -> BatchResult:
    config, source = shared.open_checkout(options)
    hosts = config.select_hosts(options.host)  # a wrong name ends it before anything else is loaded
    if options.image and all(host.runtime == "none" for host in hosts):
        raise UsageError(f"--image: host {options.host} runs no container", hint="name a host with another `runtime`")
    from ci_tasks.records import together
    from ci_tasks.run.checkout_source import ExecutionOptions, RunRequest
    from ci_tasks.run.label import changed_runs, in_turn, run

    print(source.headline, flush=True)
    label = source.label_of(options.label)
    slots = (options.jobs or _DETACHED_ROWS) if options.detach else 0
    request = RunRequest(
        label, options.only, options.host, options.base, fresh_env=options.fresh_env, keep=options.keep,
        image=options.image, prefetch=options.prefetch, probe=not options.no_probe, slots=slots,
    )  # fmt: skip
    retry_failed = options.retry_failed
    how = ExecutionOptions(options.jobs, options.detach, options.resume, options.fail_fast, retry_failed, events)
    repeats = bool(options.repeat or options.until_fail)
    parts = changed_runs(source, request) if source.suite.is_changed(label) else [request]
    parts = _last_failed(label, source, parts) if options.last_failed else parts
    if repeats:
        repeat, often = registry.load("ci_tasks.trials.repeat:repeat"), (options.repeat, options.until_fail)
        return together(label, in_turn(parts, lambda part: repeat(source, config, part, *often, how)))
    return run(source, config, label, parts, how)


def _last_failed(label: str, source: CheckoutSource, parts: Sequence[RunRequest]) -> list[RunRequest]:
    """The rows of `parts` that `--last-failed` selects. Raises UsageError if there are none."""
    from ci_tasks.records import PASSED
    from ci_tasks.results.history import latest

    last = [latest(part.label, str(source.path)) for part in parts]
    chosen = [
        replace(part, rows=rows)
        for part, known in zip(parts, last, strict=True)
        if (rows := tuple(row for row in part.rows or known if known.get(row, PASSED) != PASSED))
    ]
    if not chosen:
        what = "no row failed in the last" if any(last) else "there is no earlier"
        raise UsageError(f"{what} run of {label} on this checkout", hint="run it without --last-failed")
    return chosen
