"""`compare`: a label's rows on your tree and on a base, in turn on one host, until each row has its word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import default_base, resolve_base
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, printable
from ci_tasks.report.table import paragraph
from ci_tasks.results import history
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials import report
from ci_tasks.trials.pinned_tree import PinnedTree, pinned
from ci_tasks.trials.report import SideResult
from ci_tasks.trials.rules import (
    AB,
    BROKEN,
    CANNOT_TELL,
    ERROR,
    FINE,
    FIXED,
    FLAKY,
    PASSED,
    RISE,
    YOURS,
    Outcome,
    TrialVerdict,
)
from ci_tasks.trials.runner import Execute, Runner, Subject, expected_seconds, given_key, outcome_of, ran_tests
from ci_tasks.trials.trial import Trial
from ci_tasks.trials.words import CANCELLED, COMPARE
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream
    from ci_tasks.trials.options import CompareOptions

BASE = "base"
_MAX_RUNS = 20


@dataclass(frozen=True)
class RowComparison:
    """`verdict` is yours, already broken, flaky, fixed, fine, blocked, cannot tell, `passes` for a row of several that
    passed on your tree and was not compared, or cancelled. `way` is the failure that decides, "" for all together.
    `differs` is what the two workflows give the row otherwise."""

    row: str
    verdict: str
    why: str
    way: str
    yours: SideResult
    base: SideResult
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparisonResult:
    """`verdict` is that of the row that matters most. `error` is the most probable that a row's word is wrong, `rise`
    what yours has to fail more often so that `flaky`, `already broken` or `fine` is wrong."""

    verdict: str
    exit_code: int
    label: str
    host: str
    base: str
    yours: str
    error: float
    rise: float
    rows: tuple[RowComparison, ...] = ()


@dataclass(frozen=True)
class ComparisonRequest:
    """What is compared: `rows` are whole names, `base` a revision and `base_is` what it is called. `screen`: a row of
    several that passes on your tree is not compared."""

    run: RunRequest
    base: str
    base_is: str = ""
    max_runs: int = _MAX_RUNS
    screen: bool = False
    resume: bool = True


def compare(options: CompareOptions, config: Config, events: EventStream | None = None) -> ComparisonResult:
    """Compare the rows that the options mean. Raises UsageError if both trees are the same, or lack a row."""
    config.host(options.host)
    source = open_source(options.repo, None, options.workflow, config.given)
    print(source.headline, flush=True)
    label = source.label_of(options.label)
    rows = find_rows(source, label, event_context(source), None).rows
    chosen = [row for row in rows if row.row == options.only] or select(rows, options.only, label)
    base, parted_from = (options.base, "") if options.base else default_base(source.path)
    base_is = f"merge base of HEAD and {parted_from}" if parted_from else base
    names = tuple(row.row for row in chosen)
    run = RunRequest(label, None, options.host, image=options.image, rows=names, probe=not options.no_probe)
    max_runs = options.max_runs or _MAX_RUNS
    request = ComparisonRequest(run, base, base_is, max_runs, len(names) > 1, not options.fresh)
    return compare_rows(source, config, request, events)


def open_base(
    source: CheckoutSource, config: Config, request: ComparisonRequest
) -> tuple[CheckoutSource, Mapping[str, tuple[str, ...]]]:
    """The base, and by row what its workflow gives it otherwise. Raises CheckoutError, UnknownName for a label,
    UsageError for a row that the base does not have."""
    commit = resolve_base(source.path, request.base)
    base = open_source(str(source.path), commit, source.workflow.path, config.given)
    label = request.run.label
    of_base, of_yours = (
        {row.row: row for row in find_rows(side, label, event_context(side), None).rows} for side in (base, source)
    )
    if missing := [row for row in request.run.rows if row not in of_base]:
        raise UsageError(
            f"the base {commit[:12]} has no row {missing[0]} of label {label}: nothing to compare it with",
            hint="what is new on your tree can only fail by your change; --only leaves it out, --base names another",
        )
    return base, {row: _differences(of_base[row], of_yours[row]) for row in request.run.rows if row in of_yours}


def _differences(base: Row, yours: Row) -> tuple[str, ...]:
    """Where the workflow itself changed what the row gets: its data and its seed are among the arguments."""
    named = [("arguments", base.args, yours.args), ("image", base.image, yours.image), ("GPUs", base.gpus, yours.gpus)]
    variables = [(name, base.env.get(name), yours.env.get(name)) for name in dict.fromkeys([*base.env, *yours.env])]
    return tuple(
        f"{name}: base {ours or 'none'}, yours {theirs or 'none'}"
        for name, ours, theirs in [*named, *variables]
        if ours != theirs
    )


def compare_rows(
    source: CheckoutSource,
    config: Config,
    request: ComparisonRequest,
    events: EventStream | None = None,
    *,
    execute: Execute = execute_label,
) -> ComparisonResult:
    """Compare rows of `source` with those of a base, and print it all. ^C ends it without a word."""
    base_source, differences = open_base(source, config, request)
    run = request.run
    with ExitStack() as stack:
        trees = {YOURS: stack.enter_context(pinned(source, None)), BASE: stack.enter_context(pinned(base_source, None))}
        yours, base = (trees[side].checkout for side in (YOURS, BASE))
        if base.tree == yours.tree:
            raise UsageError(
                f"your tree is that of the base {base.commit[:12]}",
                hint="--base REV names another one; `run --repeat 20` measures how often a row fails",
            )
        subjects = {
            side: Subject(its_source, run, trees[side]) for side, its_source in ((YOURS, source), (BASE, base_source))
        }
        runner = Runner(config, subjects.__getitem__, [run.host], ExecutionOptions(events=events), execute=execute)
        settings = {side: tree.checkout.tree for side, tree in trees.items()}
        more = {"label": run.label, "host": run.host, "image": run.image or "", **given_key(source.given)}
        trial = stack.enter_context(
            Trial(
                "compare",
                settings,
                run.rows,
                runner,
                more=more,
                resume=request.resume,
                show=lambda number, one: report.line(number, one, f"{one.setting:<5}  {one.row}"),
            )
        )
        trial.earlier = _earlier(trial, trees, request, source.given.tests) if request.resume else []
        print("\n".join(map(printable, _announcement(request, trial, trees))), flush=True)
        rule = AB(BASE, YOURS, request.max_runs, request.screen, seed="".join(settings.values()))
        trial.run(lambda row, known: replace(rule, at_most=rule.at_most + sum(one.counts for one in known)))
        new = trial.outcomes[trial.resumed :]
        sample = {row: rule.sample(trial.of_row(row)) for row in trial.rows}
        rows = tuple(_row(row, trial.verdict(row), of, new, differences.get(row, ())) for row, of in sample.items())
    word = CANCELLED if trial.is_interrupted else min((row.verdict for row in rows), key=[*COMPARE].index)
    commits = base.commit, yours.commit
    result = ComparisonResult(word, COMPARE[word], run.label, run.host, *commits, ERROR, RISE, rows)
    print("\n".join(["", *_lines(result, sample, terminal_width())]), flush=True)
    return result


def _earlier(
    trial: Trial, trees: Mapping[str, PinnedTree], request: ComparisonRequest, tests: Sequence[str]
) -> list[Outcome]:
    """Runs of the history of these very trees and tests on the host, with the image of the newest one. A failure of
    yours that is the first is left out: it was chosen because it failed, and is no fair sample."""
    sides = {tree.checkout.tree: side for side, tree in trees.items()}
    found: dict[tuple[str, str], list[Outcome]] = {}
    own = {one.run for one in trial.outcomes}
    for record in reversed(history.search(history.RunQuery(label=request.run.label, host=(request.run.host,)))):
        side = sides.get(record.checkout.tree if record.checkout and ran_tests(record, tests) else "")
        if side and record.row in request.run.rows and not record.retry_of and not (record.id and record.id in own):
            outcome = outcome_of(side, record)
            found.setdefault((side, record.row), []).extend([outcome] if outcome.counts else [])
    earlier = []
    for (side, _), outcomes in found.items():
        outcomes = [one for one in outcomes if one.image == outcomes[-1].image]
        is_reason = side == YOURS and not request.screen and outcomes and outcomes[0].status != PASSED
        earlier += outcomes[1:] if is_reason else outcomes
    return earlier


def _announcement(request: ComparisonRequest, trial: Trial, trees: Mapping[str, PinnedTree]) -> list[str]:
    """What is going to happen, and the most that it may cost."""
    run, base = request.run, trees[BASE].checkout
    known = [expected_seconds(run.label, row, [run.host]) for row in run.rows]
    seconds = max((one for one in known if one is not None), default=None)
    what = f"row {run.rows[0]}" if len(run.rows) == 1 else f"{len(run.rows)} rows, those that fail"
    return [
        f"comparing {what} on {run.host}",
        f"yours: {trees[YOURS].checkout.title}",
        f"base: {(base.head or base.commit)[:12]} ({request.base_is or request.base})",
        f"at most {report.cost(request.max_runs, seconds)}",
        *([f"the history has {len(trial.earlier)} runs of these trees"] if trial.earlier else []),
    ]


def _row(
    row: str, verdict: TrialVerdict, outcomes: Sequence[Outcome], new: Sequence[Outcome], differs: tuple[str, ...]
) -> RowComparison:
    yours, base = (report.side(outcomes, side, new) for side in (YOURS, BASE))
    return RowComparison(row, verdict.word, verdict.why, verdict.way, yours, base, differs)


def _lines(result: ComparisonResult, sample: Mapping[str, Sequence[Outcome]], width: int | None) -> list[str]:
    """Both rates of each row, what differs, and the word with what it promises."""
    verdicts = {row.row: TrialVerdict(row.verdict, row.why) for row in result.rows}
    sides = {
        "YOURS FAILED": {row.row: row.yours for row in result.rows},
        "BASE FAILED": {row.row: row.base for row in result.rows},
    }
    lines = report.rates(verdicts, sides, width)
    for row in result.rows:
        for side in (YOURS, BASE):
            own = [one for one in sample[row.row] if one.setting == side]
            lines += report.failures(f"{row.row}, {side}", own)
        for text in _details(row):
            lines += paragraph(f"{row.row}: {text}" if len(result.rows) > 1 else text, width)
    promise = ""
    if result.verdict in (YOURS, FIXED):
        promise = f"; wrong in at most {100 * ERROR:.0f} % of comparisons"
    elif result.verdict in (BROKEN, FLAKY, FINE):
        points = f"{100 * RISE:.0f} points"
        promise = f"; a failure rate that rose by {points} or more is overlooked in at most {100 * ERROR:.0f} %"
    elif result.verdict == CANNOT_TELL:
        promise = "; the same command goes on from here, with --max-runs for more"
    elif result.verdict == "blocked":
        promise = "; nothing was shown about the code: `ci-tasks doctor` says what the host lacks"
    return [*map(printable, lines), "", *map(printable, paragraph(f"{result.verdict}{promise}", width))]


def _details(row: RowComparison) -> list[str]:
    lines = []
    if row.way and len({*row.yours.failures, *row.base.failures}) > 1:
        lines.append(f"what decides: {report.short(row.way)}")
    on = {side: " | ".join(of.gpus) for side, of in ((YOURS, row.yours), (BASE, row.base)) if of.gpus}
    if len({*on.values()}) == 1:
        lines.append(f"GPUs: {next(iter(on.values()))}")
    elif on:
        lines.append(
            f"GPUs: {'; '.join(f'{side} {gpus}' for side, gpus in on.items())}: the sides ran on different ones"
        )
    if row.yours.images and row.base.images and row.yours.images != row.base.images:
        lines.append(f"images differ: yours {', '.join(row.yours.images)}; base {', '.join(row.base.images)}")
    return [*lines, *(f"the workflows differ in {difference}" for difference in row.differs)]
