"""What the history knows of a row up to the good end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.features.failures.bisection import earlier_runs as module
from ci_tasks.features.failures.bisection.earlier_runs import earlier_runs
from ci_tasks.features.failures.bisection.observations import BEFORE_GOOD, FAIL, PASS
from ci_tasks.records import RunRecord, Triage
from tests.parts.git import git

FAILURE = Triage("x", "failed", 1, "line", "E#1", 0.9, kind="E")


def test_clean_runs_of_the_good_end_and_of_what_is_older_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(id: str, commit: str, status: str = "passed", row: str = "row", **more: Any) -> RunRecord:
        triage = FAILURE if status == "failed" else None
        return RunRecord(id, "label", row, "one", status, triage=triage, checkout=Checkout(commit=commit, **more))

    git(tmp_path, "init", "-q", ".")
    for number in range(3):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
    older, good, newer = git(tmp_path, "rev-list", "--reverse", "HEAD").split()
    records = [
        record("older", older),
        record("older failed", older, "failed"),
        record("good", good),
        record("own", good),
        record("newer", newer, "failed"),
        record("changed files", good, dirty=("a.py",)),
        record("another row", good, row="row 2"),
        RunRecord("no checkout", "label", "row", "one", "passed"),
    ]
    monkeypatch.setattr(module, "search", lambda query: records)
    counted = earlier_runs(tmp_path, good, "label", "row", frozenset({"own"}))
    assert [(run.run, run.position, run.kind, run.signature, run.failure_kind) for run in counted] == [
        ("older", BEFORE_GOOD, PASS, "", ""),
        ("older failed", BEFORE_GOOD, FAIL, "E#1", "E"),
        ("good", 0, PASS, "", ""),
    ]
