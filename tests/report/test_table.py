"""The one layout rule: no cell is cut, a table that is too wide continues below its row, sentences wrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ci_tasks.agent.records import Checkout
from ci_tasks.records import PlanEntry
from ci_tasks.report.lists import plans
from ci_tasks.report.table import Table, duration, paragraph, size, wrapped
from ci_tasks.safe_output import terminal_width

MODE = "qwen3_4B_ckpt[save-cpu-load-cpu]"
WORDS = "GPU memory was needed by another process"
PATH = "/home/me/.local/state/ci-tasks/runs/20260101-120000-ckpt/01/log.txt"


TABLES = [
    ([], (), None, []),
    ([[]], (), None, [""]),
    ([["a", "b"], ["long", "c"]], (), None, ["a     b", "long  c"]),
    # The last cell of a line is not padded, and a short line needs no empty cells.
    ([["a"], ["bb", "c", "d"]], (), None, ["a", "bb  c  d"]),
    ([["a", ""], ["b", "c"]], (), 80, ["a", "b  c"]),
    # East Asian characters take two cells, accents that join a letter none.
    ([["日本", "x"], ["abcde", "x"]], (), 80, ["日本   x", "abcde  x"]),
    ([["e\u0301", "x"], ["ab", "x"]], (), None, ["e\u0301   x", "ab  x"]),
    ([["a", "\x1b[31mimage"]], (), None, ["a  �[31mimage"]),
    # A head over nothing is left out.
    ([["a", ""], ["b", ""]], ("ROW", "REASON"), None, ["ROW", "a", "b"]),
    ([], ("ROW", "REASON"), None, ["ROW  REASON"]),
    # Words wrap beside the other cells, or below them where there is no room.
    ([["failed", "a", WORDS]], ("STATUS", "ROW", "REASON"), 40, [
        "STATUS  ROW  REASON", "failed  a    GPU memory was needed by", "             another process",
    ]),
    ([["failed", MODE, WORDS], ["passed", "x", ""]], ("STATUS", "ROW", "REASON"), 40, [
        "STATUS  ROW", "    REASON", f"failed  {MODE}", "    GPU memory was needed by another", "    process",
        "passed  x",
    ]),
    ([["log of ckpt:", PATH]], (), 40, ["log of ckpt:", f"    {PATH}"]),
    ([["20260101-120000-ckpt.01", "failed", MODE, WORDS]], ("RUN", "STATUS", "ROW", "REASON"), 50, [
        "RUN                      STATUS", "    ROW", "    REASON",
        "20260101-120000-ckpt.01  failed", f"    {MODE}", f"    {WORDS}",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "head", "width", "text"), TABLES)
def test_a_table_as_text(lines: list[list[str]], head: Sequence[str], width: int | None, text: list[str]) -> None:
    assert Table(lines, head).text(width) == text


def test_a_table_as_markdown_has_cells_that_stay_text() -> None:
    table = Table([("a|b", "", "@me <b>"), ("c", "", "two\nlines")], ("ROW", "HOST", "REASON"))
    assert table.markdown() == [
        "| ROW | REASON |", "|---|---|", "| a&#124;b | @\u200bme &#60;b&#62; |", "| c | two lines |",
    ]  # fmt: skip


def test_a_paragraph_hangs_from_its_first_line_and_no_word_is_broken() -> None:
    assert paragraph("a: one two three", 12, "  ") == ["  a: one", "    two", "    three"]
    assert paragraph("a: one two three", None, "  ") == ["  a: one two three"]
    assert wrapped("a bb ccc", 2) == ["a", "bb", "ccc"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (4.25, "4.2 s"), (99.96, "1 min 40 s"), (120, "2 min"), (125, "2 min 05 s"), (7260, "2 h 01 min")],
)
def test_a_length_of_time_is_as_short_as_its_size_allows(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0.0 kB"), (340, "0.3 kB"), (34_500_000, "34.5 MB"), (10**9, "1.0 GB")]
)
def test_bytes_are_in_the_unit_of_their_size(count: int, expected: str) -> None:
    assert size(count) == expected


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("0", None), ("wide", None), ("", None)])
def test_a_file_or_a_pipe_has_no_width_unless_columns_says_one(
    columns: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width


NAMES = st.text("abcXYZ日本._-[]", min_size=1, max_size=70)
TEXTS = st.lists(st.text("abcXYZ日本.…", min_size=1, max_size=30), max_size=12).map(" ".join)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["failed", "passed"]), NAMES, TEXTS), min_size=1), st.integers(20, 140))
def test_every_name_and_word_is_whole_and_a_line_is_too_long_only_where_one_of_them_is(
    lines: Sequence[tuple[str, str, str]], width: int
) -> None:
    shown = Table(lines).text(width)
    words = [*(name for _, name, _ in lines), *(word for line in lines for word in line[2].split())]
    assert {*words} <= {*" ".join(shown).split()}
    longest = max(map(cell_len, ["failed", *words]))
    assert all(cell_len(line) <= max(width, len("    ") + max(longest, 24)) for line in shown)


PLAN = PlanEntry(
    id="b.01", label="l", job="j", row="", host="local", test=None, args="", gpus=0, image=None, runtime="none",
    env={}, secrets=(), workspace="/w", timeout_minutes=1, stall_minutes=1, deviations=(), container=None,
    checkout=Checkout("/c", "1", "2"), script="",
)  # fmt: skip


def plan(row: str, run_dir: str = "", missing: tuple[str, ...] = (), **more: Any) -> PlanEntry:
    return replace(PLAN, row=row, run_dir=run_dir or f"/runs/{row}", lacks=missing, **more)


def test_each_plan_is_a_line_that_can_be_pasted() -> None:
    assert plans([plan("a", run_dir="/the runs/a"), plan("b", gpus=8, run_dir="/the runs/it's b")]) == [
        "cd '/the runs'",
        "",
        "ROW  GPUS  RUN BY HAND",
        "a    0     bash a/run.sh",
        "b    8     bash 'it'\"'\"'s b/run.sh'",
        "",
    ]
    assert plans([plan("a")], here=False) == ["plans: /runs", "", "ROW  GPUS", "a    0", ""], "they run elsewhere"
