"""`--repeat` and `--until-fail`: a label's rows again and again on one tree, until the answer is clear.

Every repetition is a run like any other, with its own batch, records and logs. What it takes is pinned: the tree is
cloned once, and whoever edits the checkout meanwhile does not change what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Protocol

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.features.failures.repeats import outcomes as repeats
from ci_tasks.features.failures.repeats import report
from ci_tasks.features.failures.repeats.outcomes import RepeatLimit, RepetitionOutcome
from ci_tasks.hosts.executor import OpenExecutor
from ci_tasks.hosts.executors import open_executor
from ci_tasks.records import BLOCKED, CANCELLED, EXIT_CODES, VACUOUS, BatchResult, RunRecord, overall
from ci_tasks.report import results
from ci_tasks.run import interrupts
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.events import ProgressView, RowChanged
from ci_tasks.run.label import LabelResult, execute_label
from ci_tasks.run.progress import PlainView
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.run.results_table import batch_result
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials.pinned_tree import pinned


class Perform(Protocol):
    """See ci_tasks.run.label.perform."""

    def __call__(
        self,
        source: CheckoutSource,
        config: Config,
        request: RunRequest,
        options: ExecutionOptions,
        *,
        open_executor: OpenExecutor,
        view: ProgressView | None,
    ) -> LabelResult | None: ...


@dataclass
class Repetitions:
    """What came of repeating. `outcomes` are by row, in the order of the label; `records` of every repetition in turn,
    each with its log. `interrupted`: a person pressed ^C."""

    limit: RepeatLimit
    checkout: Checkout
    count: int = 0
    outcomes: dict[str, list[RepetitionOutcome]] = field(default_factory=dict)
    records: list[tuple[RunRecord, str]] = field(default_factory=list)
    interrupted: bool = False

    @property
    def rows_to_run(self) -> list[str]:
        """The rows that still need evidence. The first failure of any row ends `--until-fail` for all."""
        if self.limit.until_fail and any(
            repeats.count_outcomes(outcomes).failed for outcomes in self.outcomes.values()
        ):
            return []
        return [row for row, outcomes in self.outcomes.items() if not repeats.stop_reason(outcomes, self.limit)]

    @property
    def status(self) -> str:
        """Passed where every row passed as often as it was to, failed where one failed, blocked where one was given up,
        cancelled after ^C."""
        statuses = [repeats.status(outcomes, self.limit) for outcomes in self.outcomes.values()]
        return CANCELLED if self.interrupted else overall(statuses)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def result(self, label: str) -> BatchResult:
        """All repetitions of all rows, in turn."""
        runs = batch_result(label, [record for record, _ in self.records], [log for _, log in self.records])
        return replace(runs, status=self.status, exit_code=self.exit_code)

    def rows(self) -> list[report.RepeatedRow]:
        """Every row as the report wants it; the last repetition of a kind stands for its like."""
        examples: dict[tuple[str, str], report.Example] = {}
        for record, log in self.records:
            examples[record.row, _status_or_failure(repeats.outcome(record))] = report.Example(_line(record), log)
        return [
            report.RepeatedRow(
                row,
                repeats.count_outcomes(outcomes),
                self._stopped(outcomes),
                {kind: example for (of, kind), example in examples.items() if of == row},
            )
            for row, outcomes in self.outcomes.items()
        ]

    def _stopped(self, outcomes: Sequence[RepetitionOutcome]) -> str:
        return (
            repeats.stop_reason(outcomes, self.limit)
            if repeats.count_outcomes(outcomes).conclusive < self.limit.repeats
            else ""
        )


def repeat(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    limit: RepeatLimit,
    how: ExecutionOptions = ExecutionOptions(),
    *,
    open_executor: OpenExecutor = open_executor,
    perform: Perform = execute_label,
) -> BatchResult:
    """Run a label's rows until `goal` is reached or the answer is clear, and say what it is."""
    print(source.headline, flush=True)
    done = perform_repeatedly(source, config, request, limit, how, open_executor=open_executor, perform=perform)
    if not done.outcomes and not done.interrupted:
        return BatchResult("", VACUOUS, EXIT_CODES[VACUOUS])  # `perform` has said why
    print_results(done, request.label)
    return done.result(request.label)


def perform_repeatedly(
    source: CheckoutSource,
    config: Config,
    request: RunRequest,
    limit: RepeatLimit,
    how: ExecutionOptions = ExecutionOptions(),
    *,
    open_executor: OpenExecutor = open_executor,
    perform: Perform = execute_label,
) -> Repetitions:
    """Repeat, with a line for each repetition. No outcome where the label has no row. ^C ends it with what there is.

    Raises what `perform` raises; if that is not the first repetition, what came before is told.
    """
    with pinned(source, request.base) as pin, interrupts.noticed() as interrupted:
        repetitions = Repetitions(limit, pin.checkout)
        print(report.announcement(limit.repeats, limit.until_fail, pin.checkout), flush=True)
        once = partial(perform, source, config, open_executor=pin.wrap(open_executor), view=QuietRowsView())
        again = request
        try:
            while (repetitions.rows_to_run or not repetitions.count) and not repetitions.interrupted:
                done = _perform_once(repetitions, request.label, partial(once, again, how))
                if done is None:
                    break
                _add_repetition(repetitions, done)
                repetitions.interrupted = interrupted()
                again = replace(request, rows=tuple(repetitions.rows_to_run), fresh_env=False)
        except KeyboardInterrupt:
            repetitions.interrupted = True
        except CiTasksError:
            if repetitions.count:
                print_results(repetitions, request.label)
            raise
    return repetitions


def print_results(done: Repetitions, label: str) -> None:
    """Print the table that ends it, and what differs from CI."""
    rows = done.rows()
    many = "" if done.count == 1 else "s"
    width = terminal_width()
    differs = results.deviations([record for record, _ in done.records], width)
    print("\n".join(["", *report.results(rows, repeats.EQUAL_FAILURES, width), "", *differs, ""]) if rows else "")
    ended = "; interrupted" if done.interrupted else ""
    print(
        f"{label}: {done.count} repetition{many} on tree {done.checkout.tree[:12]}: {report.summary(rows)}{ended}",
        flush=True,
    )


def _perform_once(repetitions: Repetitions, label: str, once: Callable[[], LabelResult | None]) -> LabelResult | None:
    """One repetition. A host that cannot be reached blocks it for all its rows, unless it never could."""
    try:
        return once()
    except Blocked as problem:
        if not repetitions.count:
            raise
        records = [RunRecord("", label, row, None, BLOCKED, problem.message) for row in repetitions.rows_to_run]
        return LabelResult("", records, [""] * len(records))


def _add_repetition(repetitions: Repetitions, done: LabelResult) -> None:
    """Count a repetition, and say how it went."""
    repetitions.count += 1
    for record, log in zip(done.records, done.logs, strict=True):
        repetitions.outcomes.setdefault(record.row, []).append(repeats.outcome(record))
        repetitions.records.append((record, log))
    ended = {record.row: report.short(_status_or_failure(repeats.outcome(record))) for record in done.records}
    counts = [repeats.count_outcomes(outcomes) for outcomes in repetitions.outcomes.values()]
    print(report.progress(repetitions.count, ended, counts), flush=True)


def _line(record: RunRecord) -> str:
    """The one that says why. Of a row that hung, the log's last line says nothing."""
    hung = record.hang.reason if record.hang is not None and record.hang.outcome == "shown" else ""
    return hung or (record.triage.line if record.triage is not None else "") or record.reason


def _status_or_failure(outcome: RepetitionOutcome) -> str:
    """The status, or of a failure its way."""
    return outcome.failure_kind if repeats.count_outcomes([outcome]).failed else outcome.status


class QuietRowsView(PlainView):
    """A line a repetition is enough: of the rows in it, a person hears what is unusual, and now and then that they
    still run. Their logs would bury the lines that count."""

    def print_row(self, event: RowChanged, several: bool) -> None:
        pass
