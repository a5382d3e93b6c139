"""`compare`: a label's rows on your tree and on a base, in turn on one host, until each row has its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import default_base, resolve_rev
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, one_line, printable, short
from ci_tasks.logs.job_row import row_candidates
from ci_tasks.records import FAILED
from ci_tasks.report.table import paragraph
from ci_tasks.results.history import RunQuery, search
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context, open_source
from ci_tasks.run.find_rows import why_no_rows
from ci_tasks.run.label import execute_label
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials import report, rules
from ci_tasks.trials.report import SideResult
from ci_tasks.trials.rules import AB, BLOCKED, BROKEN, CANNOT_TELL, ERROR, FINE, FIXED, FLAKY, RISE, YOURS
from ci_tasks.trials.trial import Execute, Runner, Subject, Trial, cost, pinned, rows_named
from ci_tasks.trials.words import CANCELLED, COMPARE
from ci_tasks.workflow.model import Row

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream
    from ci_tasks.trials.options import CompareOptions

BASE = "base"
# What is printed beside a word. bench/trials.py simulates these promises.
_RIGHT = f"; wrong in at most {100 * ERROR:.0f} % of comparisons"
_NO_RISE = f"; a failure rate that rose by {100 * RISE:.0f} points or more is missed in at most {100 * ERROR:.0f} %"
_PROMISES = {
    **dict.fromkeys((YOURS, FIXED), _RIGHT),
    **dict.fromkeys((BROKEN, FLAKY, FINE), _NO_RISE),
    CANNOT_TELL: "; the same command continues from here, with --max-runs for more",
    BLOCKED: "; nothing is known about the code; if its host is the reason, `ci-tasks doctor` shows what it lacks",
}


@dataclass(frozen=True)
class RowComparison:
    """`verdict` is yours, already broken, flaky, fixed, fine, blocked, cannot tell, `passes` for a row of several that
    passed on your tree and was not compared, or cancelled. `way` is the failure that decides, "" for all together."""

    row: str
    verdict: str
    why: str
    way: str
    yours: SideResult
    base: SideResult


@dataclass(frozen=True)
class ComparisonResult:
    """`verdict` is the verdict of the row that matters most. `error` is the most probable that a row's word is wrong,
    `rise` what yours has to fail more often so that `flaky`, `already broken` or `fine` is wrong."""

    verdict: str
    exit_code: int
    label: str
    host: str
    base: str
    yours: str
    error: float
    rise: float
    rows: tuple[RowComparison, ...] = ()


def compare(
    options: CompareOptions, config: Config, events: EventStream | None = None, *, execute: Execute = execute_label
) -> ComparisonResult:
    """Compare the rows that the options mean, and print it all. ^C ends it without a word. Raises UsageError if both
    trees are the same, or the base lacks a row."""
    host = config.host(options.host).name
    source = open_source(options.repo, None, options.workflow, config.given)
    label = source.label_of(options.label)
    revision, parted_from = (options.base, "") if options.base else default_base(source.path)
    rows_here = rows_named(source, label, options.only)
    names = tuple(row.row for row in rows_here)
    if not names:
        raise UsageError(why_no_rows(source, label, None), hint="`ci-tasks jobs` lists the rows of each label")
    commit = resolve_rev(source.path, revision)
    sources = {YOURS: source, BASE: open_source(str(source.path), commit, source.workflow.path, config.given)}
    there = {row.row for row in rows_named(sources[BASE], label, None)}
    if missing := [name for name in names if name not in there]:
        message = f"the base {short(commit)} has no row {missing[0]} of label {label}: nothing to compare it with"
        raise UsageError(message, hint="use --only to leave out new rows, or --base for another base")
    if options.ci:
        print("\n".join(map(printable, _in_ci(source, label, rows_here))), flush=True)
    run = RunRequest(label, None, host, image=options.image, rows=names, probe=not options.no_probe)
    with ExitStack() as stack:
        trees = {side: stack.enter_context(pinned(each, None)) for side, each in sources.items()}
        yours, base = (trees[side].checkout for side in (YOURS, BASE))
        if base.tree == yours.tree:
            raise UsageError(f"your tree equals the base {short(base.commit)}", hint="--base REV names another one")
        subjects = {side: Subject(each, run, trees[side]) for side, each in sources.items()}
        runner = Runner(config, subjects.__getitem__, ExecutionOptions(events=events), execute=execute)
        settings = {side: tree.checkout.tree for side, tree in trees.items()}
        more = {"label": label, "asked": source.asked_key(config, run, config.host(host))}
        trial = stack.enter_context(Trial("compare", settings, run.rows, runner, more=more, resume=not options.fresh))
        what = f"row {run.rows[0]}" if len(run.rows) == 1 else f"failing rows of {len(run.rows)}"
        base_is = f"merge base of HEAD and {parted_from}" if parted_from else revision
        lines = [source.headline, f"comparing {what} on {host}", f"yours: {yours.title}"]
        lines += [f"base: {short(base.head or base.commit)} ({base_is})"]
        lines += [f"for a row at most {cost(options.max_runs, label, [host], names)}"]
        print("\n".join(map(printable, lines)), flush=True)
        rule = AB(BASE, YOURS, screen=len(run.rows) > 1, seed="".join(settings.values()))
        made = Counter(one.row for one in trial.outcomes if one.counts)
        trial.run(lambda row: replace(rule, at_most=options.max_runs + made[row]))
    verdicts = {row: _checked(trial.verdict(row), trial.of_row(row), runner) for row in trial.rows}
    width = terminal_width()
    samples = {row: rule.sample(trial.of_row(row)) for row in verdicts}
    mine, theirs = ({row: report.side(of, side) for row, of in samples.items()} for side in (YOURS, BASE))
    rows = tuple(RowComparison(row, v.word, v.why, v.way, mine[row], theirs[row]) for row, v in verdicts.items())
    word = CANCELLED if trial.is_interrupted else min((row.verdict for row in rows), key=[*COMPARE].index)
    lines = ["", *report.rates(verdicts, {"YOURS FAILED": mine, "BASE FAILED": theirs}, width), *_notes(rows, width)]
    for row, outcomes in samples.items():
        for side in (YOURS, BASE):
            lines += report.failures(f"{row}, {side}", [one for one in outcomes if one.setting == side])
    lines += report.moved_images(trial.outcomes)
    lines += ["", *paragraph(f"{word}{_PROMISES.get(word, '')}", width)]
    print("\n".join(lines), flush=True)
    return ComparisonResult(word, COMPARE[word], label, host, base.commit, yours.commit, ERROR, RISE, rows)


def _checked(verdict: rules.TrialVerdict, outcomes: Sequence[rules.Outcome], runner: Runner) -> rules.TrialVerdict:
    """The verdict; nothing is told of a tree that does not run the test that fails on the base."""
    if verdict.word not in (FIXED, FINE):
        return verdict
    base, yours = ([one for one in outcomes if one.setting == side] for side in (BASE, YOURS))
    failed = [runner.record(one).triage for one in base if one.status == FAILED]
    why = runner.not_run([test for triage in failed if triage for test in triage.tests], yours)
    return rules.TrialVerdict(CANNOT_TELL, f"your tree passes, but {why}") if why else verdict


def _in_ci(source: CheckoutSource, label: str, rows: Sequence[Row]) -> list[str]:
    """What CI's last runs say of the rows, by the failure that each had here last."""
    failed = search(RunQuery(label=label, status=(FAILED,)))
    signatures = {run.row: run.triage.signature for run in reversed(failed) if run.triage}
    event = event_context(source, secrets=source.workflow.secrets)
    listed = row_candidates(source.workflow, source.job_of(label), rows, event)
    shown = {each.row.row: (each.names, signatures.get(each.row.row, "")) for each in listed}
    return list(registry.hook("ci_row_history")(source.origin, source.workflow.path, shown))


def _notes(rows: Sequence[RowComparison], width: int | None) -> list[str]:
    """What decides a row that fails in several ways, and whether its sides ran on different GPUs."""
    lines: list[str] = []
    for row in rows:
        if row.way and len({*row.yours.failures, *row.base.failures}) > 1:
            lines += paragraph(f"{row.row}: what decides: {one_line(row.way)}", width)
        on = [" | ".join(side.gpus) for side in (row.yours, row.base)]
        if all(on) and on[0] != on[1]:
            lines += paragraph(f"{row.row}: the sides ran on different GPUs: yours {on[0]}; base {on[1]}", width)
    return [printable(line) for line in lines]
