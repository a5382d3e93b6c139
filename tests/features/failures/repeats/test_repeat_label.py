"""Repeating a label whose runs are given: which rows run again, when it ends, what it says and leaves with."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Deviation
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UnknownName
from ci_tasks.features.failures.repeats.outcomes import RepeatLimit
from ci_tasks.features.failures.repeats.repeat_label import repeat
from ci_tasks.records import Hang, RunRecord, Triage
from ci_tasks.report.live import RUNNING, RowProgress
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.label import LabelResult
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.workflow.model import Workflow

Capture = pytest.CaptureFixture[str]
STATUSES = {".": "passed", "a": "failed", "b": "failed", "h": "failed", "B": "blocked", "C": "cancelled"}


class Script:
    """Performs a label as it is written: row → a letter a repetition. `asked` is which rows were to run, `fresh`
    whether with packages of before. A function in place of a letter is called, and then the row passes."""

    def __init__(self, **rows: str | list[str | Callable[[], None]]) -> None:
        self.rows = {row: list(letters) for row, letters in rows.items()}
        self.requested_rows: list[list[str]] = []
        self.fresh: list[bool] = []

    def __call__(
        self, source: CheckoutSource, config: Config, request: RunRequest, options: ExecutionOptions, **more: Any
    ) -> LabelResult | None:
        rows = list(request.rows or self.rows)
        self.requested_rows.append(rows)
        self.fresh.append(request.fresh_env)
        more["view"].print_message("told")
        more["view"].update([RowProgress(row, RUNNING) for row in rows])
        more["view"].update([RowProgress(row, "passed", 1.0) for row in rows])
        records = [self._record(row, self.rows[row].pop(0)) for row in rows if row in self.rows]
        batch = f"batch-{len(self.requested_rows)}"
        return LabelResult(batch, records, [self._log(row) for row in rows]) if records else None

    def _log(self, row: str) -> str:
        return f"/logs/{len(self.requested_rows)}/{row}"

    def _record(self, row: str, letter: str | Callable[[], None]) -> RunRecord:
        if not isinstance(letter, str):
            letter()
            letter = "."
        failed = STATUSES[letter] == "failed"
        triage = Triage("x", "failed", 1, f"the line of {letter}", f"Error#{letter}", 0.9) if failed else None
        differs = (Deviation("image", "none", "ours", "it is pinned"),)
        hang = Hang("shown", "computes", "rank 2 computes") if letter == "h" else None
        known: dict[str, Any] = {"triage": triage, "hang": hang, "deviations": differs}
        return RunRecord("", "", row, None, STATUSES[letter], "the reason", **known)


@pytest.fixture
def source(tmp_path: Path) -> CheckoutSource:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/code.py").write_text("x\n")
    return CheckoutSource(tmp_path / "checkout", "given", Workflow("pr-test.yml", "PR Test", {}))


@pytest.fixture(autouse=True)
def the_usual_interrupt() -> Iterator[None]:
    """^C ends what runs, before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def ended(source: CheckoutSource, script: Script, limit: RepeatLimit, *, fresh_env: bool = False) -> int:
    request = RunRequest("ckpt", fresh_env=fresh_env)
    return repeat(source, Config({}, {}, ()), request, limit, perform=script).exit_code or 0


def press() -> None:
    """^C, as a run of rows takes it: it ends them and goes on."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def lose_the_host() -> None:
    raise Blocked("box does not answer")


def rename_the_row() -> None:
    raise UnknownName("row", "a", ["b"])


def test_each_repetition_runs_only_the_rows_that_still_need_evidence(source: CheckoutSource) -> None:
    script = Script(steady="." * 6, broken="a" * 5, blocked="BB")
    assert ended(source, script, RepeatLimit(6)) == 1
    everyone, not_blocked = ["steady", "broken", "blocked"], ["steady", "broken"]
    assert script.requested_rows == [everyone, everyone, not_blocked, not_blocked, not_blocked, ["steady"]]


def test_fresh_packages_are_installed_once_for_all_repetitions(source: CheckoutSource) -> None:
    script = Script(steady="...")
    ended(source, script, RepeatLimit(3), fresh_env=True)
    assert script.fresh == [True, False, False]


# rows → goal, repetitions that ran, exit code, the last line
ENDS: list[tuple[dict[str, Any], RepeatLimit, int, int, str]] = [
    ({"x": "..."}, RepeatLimit(3), 3, 0, "3 repetitions on tree 0123: 1 passes"),
    ({"x": ".a."}, RepeatLimit(3), 3, 1, "3 repetitions on tree 0123: 1 flaky"),
    ({"x": "aaaaa"}, RepeatLimit(20), 5, 1, "5 repetitions on tree 0123: 1 fails at least 56 %"),
    ({"x": "BB"}, RepeatLimit(2), 2, 125, "2 repetitions on tree 0123: 1 unclear"),
    ({"x": "CC"}, RepeatLimit(1), 2, 130, "2 repetitions on tree 0123: 1 unclear"),
    ({"x": [".", lose_the_host, "."]}, RepeatLimit(2), 3, 0, "3 repetitions on tree 0123: 1 passes"),
    ({"x": [".", lose_the_host, lose_the_host]}, RepeatLimit(2), 3, 125, "3 repetitions on tree 0123: 1 passes"),
    ({"x": "..a", "y": "..."}, RepeatLimit(9, until_fail=True), 3, 1, "3 repetitions on tree 0123: 1 flaky, 1 passes"),
    ({"x": "a"}, RepeatLimit(9, until_fail=True), 1, 1, "1 repetition on tree 0123: 1 unclear"),
    ({"x": [".", press]}, RepeatLimit(9), 2, 130, "2 repetitions on tree 0123: 1 passes; interrupted"),
]


@pytest.mark.parametrize(("rows", "limit", "count", "code", "last"), ENDS)
def test_it_ends_when_the_answer_is_clear_with_the_rows_statuses_for_its_exit_code(
    rows: dict[str, Any], limit: RepeatLimit, count: int, code: int, last: str, source: CheckoutSource, capsys: Capture
) -> None:
    assert ended(source, Script(**rows), limit) == code
    out = capsys.readouterr().out
    assert out.count("\nrepetition ") == count
    assert re.sub("tree [0-9a-f]{12}", "tree 0123", out.splitlines()[-1]) == f"ckpt: {last}"


def test_the_end_shows_for_each_way_of_failing_the_line_and_the_log_of_its_last_time(
    source: CheckoutSource, capsys: Capture
) -> None:
    ended(source, Script(x="a.abB."), RepeatLimit(5))
    out = capsys.readouterr().out
    assert "  2 × Error#a\n      the line of a\n      log: /logs/3/x\n" in out
    assert "  1 × Error#b\n      the line of b\n      log: /logs/4/x\n" in out
    assert "not counted of x:  1 blocked, such as: the reason\n" in out
    ended(source, Script(x="h"), RepeatLimit(1))
    assert "  1 × Error#h\n      rank 2 computes\n      log: " in capsys.readouterr().out, (
        "not the last line of its log"
    )
    assert out.count("image:  none → ours; it is pinned") == 1


def test_an_error_is_reported_after_the_earlier_repetitions(source: CheckoutSource, capsys: Capture) -> None:
    with pytest.raises(UnknownName):
        ended(source, Script(x=[".", rename_the_row]), RepeatLimit(3))
    assert "1 repetition on tree" in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(Blocked, match="does not answer"):
        ended(source, Script(x=[lose_the_host]), RepeatLimit(3))
    assert "repetition 1" not in capsys.readouterr().out
