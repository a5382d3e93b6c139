"""`--repeat` and `--until-fail`: a label's rows again and again on one tree, until the answer is clear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ci_tasks.config import Config
from ci_tasks.errors import CiTasksError, UsageError, counted, short
from ci_tasks.records import CANCELLED, EXIT_CODES, FAILED, PASSED, VACUOUS, BatchResult, overall
from ci_tasks.report import results
from ci_tasks.report.results import batch_result
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.run.label import execute_label, print_no_rows
from ci_tasks.run.progress import kept_lines
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials import report
from ci_tasks.trials.rules import Outcome, Repeat, telling
from ci_tasks.trials.trial import Execute, Runner, Subject, Trial, cost, pinned, rows_named

_TREE = "tree"
_UNTIL_FAIL_LIMIT = 100  # runs


def repeat(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    times: int | None,
    until_fail: bool = False,
    how: ExecutionOptions = ExecutionOptions(),
    *,
    execute: Execute = execute_label,
) -> BatchResult:
    """Run a label's rows until each has so many runs that count, or its answer is clear, and print it. ^C ends it with
    the result so far; an error is raised after that too."""
    if request.keep and not until_fail:
        message = "--repeat and --keep cannot be combined: every failure would keep a container and a workspace"
        raise UsageError(message, hint="--until-fail keeps those of the first failure")
    runs = times or _UNTIL_FAIL_LIMIT
    with pinned(source, request.base) as tree:
        checkout = tree.checkout
        often = f"each row {counted(runs, 'time')}, or until its answer is clear"
        if until_fail:
            often = f"until a row fails, at most {counted(runs, 'time')}"
        print(f"repeating {often}: {checkout.title}, tree {short(checkout.tree)}", flush=True)
        label, hosts = request.label, config.select_hosts(request.host)
        names = request.rows or tuple(row.row for row in rows_named(source, label, request.only, request.base))
        if not names:
            print_no_rows(source, request)
            return BatchResult("", VACUOUS, EXIT_CODES[VACUOUS])
        print(f"for a row at most {cost(runs, label, [host.name for host in hosts], names)}", flush=True)
        subject = Subject(source, request, tree)
        runner = Runner(config, lambda _: subject, replace(how, resume=False), execute=execute)
        asked = source.asked_key(config, request, *hosts)
        more = {"label": label, "asked": asked, "runs": str(runs), "until_fail": str(until_fail)}
        rule = Repeat(_TREE, runs, until_fail)
        settings = {_TREE: f"{checkout.commit} {checkout.tree}"}
        with Trial("repeat", settings, names, runner, more=more, resume=how.resume) as trial:
            try:
                trial.run(lambda *_: rule, until=lambda: until_fail and _has_failed(trial.outcomes))
            except CiTasksError:
                if trial.outcomes:
                    _print(trial, runner, rule, label)
                raise
            _print(trial, runner, rule, label)
    known = filter(None, map(trial.of_row, trial.rows))  # of a row that no run reached nothing, with --until-fail
    status = CANCELLED if trial.is_interrupted else overall([_status(outcomes, runs) for outcomes in known])
    directories = {one.run: one.log.removesuffix("/log") for one in trial.outcomes if one.log}
    result = batch_result(label, [runner.record(one) for one in trial.outcomes], directories)
    print("".join(f"{line}\n" for line in kept_lines(result)), end="", flush=True)
    return replace(result, status=status, exit_code=EXIT_CODES[status])


def _has_failed(outcomes: Sequence[Outcome]) -> bool:
    return any(one.status == FAILED for one in outcomes)


def _status(outcomes: Sequence[Outcome], runs: int) -> str:
    """Of a row's runs together: failed if one of them was. Runs that said nothing do not count if others replaced them;
    a row that was given up because of them has the last one's status."""
    if _has_failed(outcomes):
        return FAILED
    known = telling(outcomes)
    return PASSED if known and (len(known) >= runs or outcomes[-1].counts) else outcomes[-1].status


def _print(trial: Trial, runner: Runner, rule: Repeat, label: str) -> None:
    """The table that ends it, each way of failing with a log, and what differs from CI."""
    outcomes = {row: trial.of_row(row) for row in trial.rows}
    verdicts = {row: rule.verdict(of) for row, of in outcomes.items()}
    width = terminal_width()
    sides = {row: report.side(of, _TREE, verdicts[row].interval) for row, of in outcomes.items()}
    lines = ["", *report.rates(verdicts, {"FAILED": sides}, width)] if outcomes else []
    lines += [line for row, of in outcomes.items() for line in report.failures(row, of)]
    lines += report.moved_images(trial.outcomes)
    lines += ["", *results.deviations([runner.record(one) for one in trial.outcomes], width), ""]
    words = Counter(verdict.word for verdict in verdicts.values())
    summary = ", ".join(f"{word} ({counted(count, 'row')})" for word, count in words.items()) or "no row ran"
    ended = "; interrupted, --resume continues" if trial.is_interrupted else ""
    print("\n".join([*lines, f"{label}: {counted(len(trial.outcomes), 'run')}: {summary}{ended}"]), flush=True)
