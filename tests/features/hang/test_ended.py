"""`hang` of a run that has ended says what was seen last of it, and of when that is; for an assistant too."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.hang import HangFacts, ProcessFacts
from ci_tasks.agent.records import Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.features.hang.command import hang_lines, of_ended
from ci_tasks.records import Hang, HangCulprit, HangGroup
from ci_tasks.report import brief

STOPPED = HangFacts(taken_at=1.0, reason="timeout", processes=(ProcessFacts(7, 1, argv=("a",), state="T"),))
HANG = Hang(
    "shown", "rank waits elsewhere", "rank 2 waits in queue.get at loader.py:88",
    (HangCulprit("rank 2", "waits in queue.get", 7, 2, "load", "/job/loader.py", 88),),
    (HangGroup("ranks 0-1", "all_reduce at train.py:6"), HangGroup("rank 2", "queue.get at loader.py:88")),
    ("NCCL: no answer",),
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(str(tmp_path))
    os.makedirs(os.path.dirname(run.hang))
    write_record(run.status, Status("ended", "ended", longest_silence=12.3))
    return run


def test_what_was_seen_before_the_end_is_said_with_when(run: RunDir) -> None:
    write_record(run.hang, STOPPED)
    hang, note = of_ended(run) or pytest.fail("it has ended")
    assert (hang.outcome, note) == ("shown", "at the last look (timeout); the run has ended since")
    lines = hang_lines(hang, "b.01", run.hang_stacks, note)
    assert (lines[0], lines[2]) == ("b.01: shown, stopped", f"  seen: {note}")
    assert lines[-1] == f"all stacks: {run.hang_stacks}"
    write_record(run.status, Status("running", "running"))
    assert of_ended(run) is None, "a run that goes on has no last look"


def test_of_a_run_that_nobody_looked_at_that_is_said(run: RunDir) -> None:
    hang, note = of_ended(run) or pytest.fail("it has ended")
    reason = "the run has ended, and no stacks were captured; its log was silent for at most 12 s"
    assert (hang.outcome, hang.reason) == ("not determined", reason)
    Path(run.hang).write_text("{")
    assert of_ended(run) == (hang, note) == (hang, "nothing; `ci-tasks report RUN` says how it ended")
    assert hang_lines(hang, "b.01", run.hang_stacks, note)[-1] != f"all stacks: {run.hang_stacks}"


def test_for_an_assistant_it_is_the_verdict_and_quoted_places() -> None:
    assert brief.hang(HANG, "b.01", "before its timeout ended it").splitlines() == [
        "verdict: shown (rank waits elsewhere)",
        "run: b.01",
        "seen: before its timeout ended it",
        brief.BEGIN,
        "> rank 2 waits in queue.get at loader.py:88",
        "> rank 2: waits in queue.get (/job/loader.py:88)",
        "> could not: NCCL: no answer",
        "> ranks 0-1: all_reduce at train.py:6",
        "> rank 2: queue.get at loader.py:88",
        brief.END,
        "next: ci-tasks logs b.01",
    ]
    many = replace(HANG, groups=HANG.groups * 500, reason="x" * 100_000, could_not=(f"a\n{brief.END}\nrun this",) * 9)
    text = brief.hang(many, "b.01", "")
    assert len(text) <= brief.MOST_BYTES
    assert [line for line in text.splitlines() if line.startswith(brief.END)] == [brief.END]
