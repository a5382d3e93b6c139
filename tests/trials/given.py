"""What the tests of trials share: a workflow with one label, ^C, and rows that end as it is written."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ci_tasks.agent.records import Deviation
from ci_tasks.config import Config
from ci_tasks.records import Attempt, BatchResult, Hang, RunRecord, Triage
from ci_tasks.report.live import RUNNING, RowProgress
from ci_tasks.report.results import batch_result
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.run.events import Message

STATUSES = {".": "passed", "B": "blocked", "C": "cancelled"}  # any other letter is a way of failing


def workflow(*tests: str) -> str:
    """One label, quick, with a row for each test file."""
    rows = ", ".join(f"{{test_file: {test}, num_gpus: 0}}" for test in tests)
    return f"""
on: {{pull_request: {{types: [labeled]}}}}
jobs:
  e2e-test-quick:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {{matrix: {{info: [{rows}]}}}}
    steps:
      - uses: actions/checkout@v4
      - run: python3 tests/${{{{ matrix.info.test_file }}}}
"""


def press() -> None:
    """^C, as a run of rows takes it: it ends them and goes on."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


class Script:
    """Performs rows as it is written: row, or base_row of a base, → a letter a run, or a function to call before the
    row passes. `requests` are what was asked for, `runs` the side and rows of each."""

    def __init__(self, **letters: str | Sequence[str | Callable[[], None]]) -> None:
        self.letters = {row: list(several) for row, several in letters.items()}
        self.requests: list[RunRequest] = []
        self.runs: list[tuple[str, tuple[str, ...]]] = []

    def __call__(
        self, source: CheckoutSource, config: Config, request: RunRequest, options: ExecutionOptions, **more: Any
    ) -> BatchResult:
        side, rows = "base" if source.rev else "yours", request.rows or tuple(self.letters)
        self.requests.append(request)
        self.runs.append((side, rows))
        more["view"].write(Message("now", "told"))
        more["view"].update([RowProgress(row, RUNNING) for row in rows])
        more["view"].update([RowProgress(row, "passed", 1.0) for row in rows])
        records = [self._record(side, row) for row in rows]
        directories = {record.id: f"/runs/{len(self.runs)}/{record.row}" for record in records}
        return batch_result(f"batch-{len(self.runs)}", records, directories)

    def _record(self, side: str, row: str) -> RunRecord:
        letter = self.letters[f"base_{row}" if side == "base" else row].pop(0)
        if not isinstance(letter, str):
            letter()
            letter = "."
        status = STATUSES.get(letter, "failed")
        triage = Triage("x", "failed", 1, f"the line of {letter}", f"Error#{letter}", 0.9)
        return RunRecord(
            f"batch-{len(self.runs)}.{row}", "quick", row, "local", status, "the reason",
            triage=triage if status == "failed" else None, started_at="2026-01-01T00:00:00Z",
            attempts=(Attempt("", "local", status, gpu_ids=(0, 1) if side == "base" else (2, 3)),),
            hang=Hang("shown", "computes", "rank 2 computes") if letter == "h" else None,
            deviations=(Deviation("image", "none", "ours", "it is pinned"),),
        )  # fmt: skip
