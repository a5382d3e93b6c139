"""`compare`: a label's rows on your tree and on a base, in turn on one host, until each row has its word.

rows       which rows both trees have
history    runs of these very trees on the host, with the same image
run        the sides in random order, only the rows that still need it
decide     after each pair: see decision.py
report     a word for each row, both rates, the metrics that moved, the promised error
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import default_base, resolve_base
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, UsageError
from ci_tasks.features.failures.comparison import report
from ci_tasks.features.failures.comparison.decision import (
    BASE,
    BLOCKED,
    BROKEN,
    CANNOT_TELL,
    ERROR,
    EXIT_CODES,
    FINE,
    FIXED,
    FLAKY,
    RISE,
    YOURS,
    ComparisonVerdict,
    RunSides,
    next_decision,
)
from ci_tasks.features.failures.comparison.metrics import compare_metrics
from ci_tasks.features.failures.comparison.result import ComparisonResult, RowComparison, SideResult
from ci_tasks.features.failures.comparison.side import SAMPLE, Side, gpus_of, image_of
from ci_tasks.features.failures.repeats.outcomes import count_outcomes, is_conclusive, outcome
from ci_tasks.features.failures.repeats.repeat_label import Perform
from ci_tasks.records import CANCELLED, PASSED
from ci_tasks.results import history
from ci_tasks.results.rates import wilson
from ci_tasks.run import interrupts
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials.pinned_tree import pinned
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.features.failures.options import CompareOptions
    from ci_tasks.run.events import EventStream

MAX_RUNS = 20
_PASSES = "passes"  # of several rows, one that passed once: it is not compared
_WORST_FIRST = (YOURS, BLOCKED, CANNOT_TELL, BROKEN, FLAKY, FIXED, FINE, _PASSES)


@dataclass(frozen=True)
class TreeComparisonRequest:
    """What is compared. `rows` are whole names; `max_runs` how many runs of a row may be added to the history's.
    `screen`: a row of several that passes on your tree is not compared. `parted_from` is the branch from which HEAD
    parted at `base`, "" where a person named the base."""

    label: str
    rows: tuple[str, ...]
    host: str
    base: str
    max_runs: int = MAX_RUNS
    image: str | None = None
    probe: bool = True
    screen: bool = False
    parted_from: str = ""


def compare(options: CompareOptions, config: Config, events: EventStream | None = None) -> ComparisonResult:
    """Compare the rows that the options mean. Raises UsageError where both trees are the same, or lack a row."""
    config.host(options.host)
    source = open_source(options.repo, None, options.workflow, config.given)
    print(source.headline, flush=True)
    label = source.label_of(options.label)
    rows = find_rows(source, label, event_context(source), None).rows
    exact = [row for row in rows if row.row == options.only]
    chosen = exact or select(rows, options.only, label)
    base, parted_from = (options.base, "") if options.base else default_base(source.path)
    names = tuple(row.row for row in chosen)
    max_runs = options.max_runs or MAX_RUNS
    probe, screen = not options.no_probe, len(names) > 1
    request = TreeComparisonRequest(
        label, names, options.host, base, max_runs, options.image, probe, screen, parted_from
    )
    return compare_rows(source, config, request, events)


def compare_rows(
    source: CheckoutSource,
    config: Config,
    request: TreeComparisonRequest,
    events: EventStream | None = None,
    *,
    perform: Perform = execute_label,
) -> ComparisonResult:
    """Compare rows of `source` with those of a base, and print it all. ^C ends it without a word."""
    base_source, differences = open_base(source, config, request)
    with ExitStack() as trees, interrupts.noticed() as interrupted:
        base = Side(BASE, base_source, trees.enter_context(pinned(base_source, None)))
        yours = Side(YOURS, source, trees.enter_context(pinned(source, None)))
        if base.tree.checkout.tree == yours.tree.checkout.tree:
            raise UsageError(
                f"your tree is that of the base {base.tree.checkout.commit[:12]}",
                hint="--base REV names another one; `run --repeat 20` measures how often a row fails",
            )
        how = ExecutionOptions(events=events)
        comparison = _TreeComparison(request, config, base, yours, differences, how, perform)
        try:
            comparison.run(interrupted)
        except KeyboardInterrupt:
            comparison.is_interrupted = True
        return comparison.finish()


def open_base(
    source: CheckoutSource, config: Config, request: TreeComparisonRequest
) -> tuple[CheckoutSource, dict[str, tuple[str, ...]]]:
    """The base, and by row what its workflow gives it otherwise. Raises CheckoutError, UnknownName for a label,
    UsageError for a row that the base does not have."""
    commit = resolve_base(source.path, request.base)
    base = open_source(str(source.path), commit, source.workflow.path, config.given)
    of_base, of_yours = (
        {row.row: row for row in find_rows(side, request.label, event_context(side), None).rows}
        for side in (base, source)
    )
    missing = [row for row in request.rows if row not in of_base]
    if missing:
        raise UsageError(
            f"the base {commit[:12]} has no row {missing[0]} of label {request.label}: nothing to compare it with",
            hint="what is new on your tree can only fail by your change; --only leaves it out, --base names another",
        )
    return base, {row: _differences(of_base[row], of_yours[row]) for row in request.rows if row in of_yours}


def _differences(base: Row, yours: Row) -> tuple[str, ...]:
    """Where the workflow itself changed what the row gets: its data and its seed are among the arguments."""
    named = (("arguments", base.args, yours.args), ("image", base.image, yours.image), ("GPUs", base.gpus, yours.gpus))
    variables = [(name, base.env.get(name), yours.env.get(name)) for name in dict.fromkeys([*base.env, *yours.env])]
    return tuple(
        f"{name}: base {ours or 'none'}, yours {theirs or 'none'}"
        for name, ours, theirs in [*named, *variables]
        if ours != theirs
    )


@dataclass
class _TreeComparison:
    request: TreeComparisonRequest
    config: Config
    base: Side
    yours: Side
    differences: Mapping[str, tuple[str, ...]]
    how: ExecutionOptions
    perform: Perform
    verdicts: dict[str, ComparisonVerdict] = field(default_factory=dict)
    new_runs: dict[str, int] = field(default_factory=dict)
    is_interrupted: bool = False

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Raises KeyboardInterrupt after ^C, which rows that ran have noticed before."""
        for side in (self.base, self.yours):
            side.load_history(self.request.label, self.request.rows, self.request.host)
        print("\n".join(self._announcement()), flush=True)
        while wanted := self._wanted():
            # Which side is first changes at random: a host that warms up, or fills, is not read as a difference.
            for side in random.sample((self.base, self.yours), 2):
                if rows := [row for row, sides in wanted.items() if side.name in sides]:
                    self._run_side(side, rows)
                if interrupted():
                    raise KeyboardInterrupt

    def _wanted(self) -> dict[str, tuple[str, ...]]:
        """The rows that have no word yet, each with the sides to run."""
        wanted = {}
        for row in self.request.rows:
            decision = self.verdicts.get(row) or self._decide(row)
            if isinstance(decision, ComparisonVerdict):
                self.verdicts[row] = decision
            else:
                wanted[row] = decision.sides
        return wanted

    def _decide(self, row: str) -> RunSides | ComparisonVerdict:
        base, yours = self.base.outcomes(row), self.yours.outcomes(row)
        if self.request.screen and not base and row not in self.yours.reasons:
            # Of a whole label, what passes is not worth a run of the base.
            if not yours:
                return RunSides((YOURS,))
            if all(one.status == PASSED for one in yours):
                return ComparisonVerdict(_PASSES, "passed on your tree; not compared")
            self.yours.drop_reason(row)
            yours = self.yours.outcomes(row)
        may_run = self.new_runs.get(row, 0) < self.request.max_runs
        return next_decision(base, yours, may_run=may_run)

    def _run_side(self, side: Side, rows: Sequence[str]) -> None:
        request = RunRequest(
            self.request.label,
            None,
            self.request.host,
            image=self.request.image,
            rows=tuple(rows),
            probe=self.request.probe,
            files={} if self._is_screening(side, rows) else {SAMPLE: ""},
        )
        records = side.run(self.config, request, self.how, self.perform)
        for record in records:
            self.new_runs[record.row] = self.new_runs.get(record.row, 0) + is_conclusive(outcome(record))
            print(report.progress(side.name, record, several=len(self.request.rows) > 1), flush=True)
        if not records or any(record.status == CANCELLED for record in records):
            raise KeyboardInterrupt

    def _is_screening(self, side: Side, rows: Sequence[str]) -> bool:
        """Whether rows are run to see which fail: only those that do are compared."""
        first = any(not self.yours.records.get(row) and row not in self.yours.reasons for row in rows)
        return self.request.screen and side is self.yours and first

    def _announcement(self) -> list[str]:
        durations = history.durations(self.request.label, [self.request.host])
        known = [durations[row] for row in self.request.rows if row in durations]
        earlier = sum(sum(side.earlier.values()) for side in (self.base, self.yours))
        return report.announcement(
            self.request.rows,
            self.yours.tree.checkout.title,
            self._base_title(),
            self.request.host,
            self.request.max_runs,
            max(known, default=None),
            earlier,
        )

    def _base_title(self) -> str:
        base = self.base.tree.checkout
        commit = (base.head or base.commit)[:12]  # `commit` has the overlays too
        parted = self.request.parted_from
        return f"{commit} ({f'where HEAD and {parted} part' if parted else self.request.base})"

    def finish(self) -> ComparisonResult:
        rows = tuple(self._row(row) for row in self.request.rows)
        words = [row.verdict for row in rows]
        word = CANCELLED if self.is_interrupted else min(words, key=_WORST_FIRST.index)
        exit_code = EXIT_CANCELLED if self.is_interrupted else EXIT_CODES.get(word, 0)
        base, yours = self.base.tree.checkout, self.yours.tree.checkout
        result = ComparisonResult(
            word, exit_code, self.request.label, self.request.host, base.commit, yours.commit, ERROR, RISE, rows
        )
        print("\n".join(["", *report.result_lines(result, terminal_width())]), flush=True)
        return result

    def _row(self, row: str) -> RowComparison:
        verdict = self.verdicts.get(row) or ComparisonVerdict(
            CANCELLED, "interrupted; the same command goes on from here"
        )
        base, yours = self._side(self.base, row), self._side(self.yours, row)
        metrics = compare_metrics(self.base.records.get(row, ()), self.yours.records.get(row, ()))
        return RowComparison(
            row, verdict.word, verdict.why, verdict.way, yours, base, metrics, self.differences.get(row, ())
        )

    def _side(self, side: Side, row: str) -> SideResult:
        records = side.records.get(row, [])
        counts = count_outcomes(side.outcomes(row))
        low, high = wilson(counts.failed, counts.conclusive)
        return SideResult(
            runs=counts.conclusive,
            failed=counts.failed,
            low=round(low, 4),
            high=round(high, 4),
            failures=dict(counts.failures),
            inconclusive=dict(counts.inconclusive),
            from_history=side.earlier.get(row, 0),
            gpus=tuple(gpus_of(records)),
            images=tuple(dict.fromkeys(filter(None, map(image_of, records)))),
            run_ids=tuple(record.id for record in records if record.id),
        )
