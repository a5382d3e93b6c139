"""One side of a comparison: a tree, pinned for as long as the comparison lasts, and its runs by row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config
from ci_tasks.errors import Blocked
from ci_tasks.features.failures.comparison.decision import YOURS
from ci_tasks.features.failures.repeats.outcomes import RepetitionOutcome, is_conclusive, outcome
from ci_tasks.features.failures.repeats.repeat_label import Perform, QuietRowsView
from ci_tasks.hosts.executors import open_executor
from ci_tasks.records import BLOCKED, PASSED, RunRecord
from ci_tasks.results import history, store
from ci_tasks.results.history import RunQuery
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.trials.pinned_tree import PinnedTree

SAMPLE = "comparison"
"""A file in the directory of a run that a comparison made, whatever came of the runs before."""


@dataclass
class Side:
    """`name` is BASE or YOURS. `records` are the runs of each row, oldest first, the first `earlier` of them from the
    history. `reasons` are rows whose first run failed, and is not counted."""

    name: str
    source: CheckoutSource
    tree: PinnedTree
    records: dict[str, list[RunRecord]] = field(default_factory=dict)
    earlier: dict[str, int] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)

    def outcomes(self, row: str) -> list[RepetitionOutcome]:
        return [outcome(record) for record in self.records.get(row, ())]

    def load_history(self, label: str, rows: Collection[str], host: str) -> None:
        """Take in the runs of this very tree on the host, with the image of the newest one."""
        found = history.search(RunQuery(label=label, host=(host,)))
        for row in rows:
            records = [record for record in reversed(found) if record.row == row and self._counts(record)]
            records = [record for record in records if image_of(record) == image_of(records[-1])]
            self.records[row], self.earlier[row] = records, len(records)
            if self.name == YOURS:
                self.drop_reason(row)

    def drop_reason(self, row: str) -> None:
        """Do not count a first run that failed: it was chosen because it failed, and is no fair sample. That of an
        earlier comparison is one."""
        records = self.records.get(row, [])
        failed = records and records[0].status != PASSED and is_conclusive(outcome(records[0]))
        if failed and not _is_sample(records[0]):
            self.reasons.add(row)
            self.records[row] = records[1:]
            self.earlier[row] = max(self.earlier.get(row, 0) - 1, 0)

    def _counts(self, record: RunRecord) -> bool:
        tree = record.checkout.tree if record.checkout else ""
        return tree == self.tree.checkout.tree and not record.retry_of and is_conclusive(outcome(record))

    def run(self, config: Config, request: RunRequest, how: ExecutionOptions, perform: Perform) -> list[RunRecord]:
        """Run the rows of `request` once. A host that cannot be reached blocks them all."""
        try:
            done = perform(
                self.source, config, request, how, open_executor=self.tree.wrap(open_executor), view=QuietRowsView()
            )
        except Blocked as problem:
            records = [
                RunRecord("", request.label, row, request.host, BLOCKED, problem.message) for row in request.rows
            ]
        else:
            records = done.records if done else []
        for record in records:
            self._add(record)
        return records

    def _add(self, record: RunRecord) -> None:
        """Count a run. The image may have moved since the runs of the history: those are then no evidence."""
        records = self.records.setdefault(record.row, [])
        if is_conclusive(outcome(record)) and any(image_of(other) != image_of(record) for other in records):
            records[:] = [other for other in records if image_of(other) == image_of(record)]
            self.earlier[record.row] = min(self.earlier.get(record.row, 0), len(records))
        records.append(record)


def _is_sample(record: RunRecord) -> bool:
    number = record.id.rpartition(".")[2]
    return store.is_row(record.id) and (store.home() / "runs" / store.batch_of(record.id) / number / SAMPLE).exists()


def image_of(record: RunRecord) -> str:
    """The image that a run used, by digest where it is known."""
    attempt = record.attempts[-1] if record.attempts else None
    return (attempt and attempt.image_digest) or record.environment.image or ""


def gpus_of(records: Sequence[RunRecord]) -> list[str]:
    """The sets of GPUs on which runs ran: `0,1` or `node1: 0,1`."""
    sets: dict[str, None] = {}
    for record in records:
        for attempt in record.attempts[-1:]:
            ids = ",".join(map(str, sorted(attempt.gpu_ids)))
            if ids:
                sets[f"{attempt.node}: {ids}" if attempt.node else ids] = None
    return list(sets)
