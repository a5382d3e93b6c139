"""The layout rule of all tables: what becomes of a table that is wider than the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ci_tasks.report.jobs_table import jobs
from ci_tasks.report.layout import columns, narrowest, paragraph, shortened, without_middle, wrapped
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.model import Row

MODES = [f"qwen3_4B_ckpt[save-{a}-load-{b}]" for a in ("cpu", "gpu") for b in ("cpu", "gpu")]
WORDS = "GPU memory was needed by another process"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], []),
        ([[]], [""]),
        ([["a"]], ["a"]),
        ([["a", "b"], ["long", "c"]], ["a     b", "long  c"]),
        # The last cell of a line is not padded, and a short line needs no empty cells.
        ([["a"], ["bb", "c", "d"]], ["a", "bb  c  d"]),
        ([["a", ""], ["b", "c"]], ["a", "b  c"]),
        # East Asian characters take two cells, accents that join a letter none.
        ([["日本", "x"], ["abcde", "x"]], ["日本   x", "abcde  x"]),
        ([["e\u0301", "x"], ["ab", "x"]], ["e\u0301   x", "ab  x"]),
    ],
)
def test_columns_are_aligned(lines: list[list[str]], text: list[str]) -> None:
    assert columns(lines) == text


def test_a_cell_has_no_control_characters() -> None:
    assert columns([["a", "\x1b[31mimage"]]) == ["a  �[31mimage"]


def test_what_fits_is_as_without_a_terminal() -> None:
    assert columns([["failed", MODES[0], "why"]], 80, names=[1]) == [f"failed  {MODES[0]}  why"]


def test_words_of_the_last_column_wrap_beside_the_others() -> None:
    assert columns([["failed", "a", WORDS], ["passed", "b", ""]], 40, head=["STATUS", "ROW", "REASON"]) == [
        "STATUS  ROW  REASON",
        "failed  a    GPU memory was needed by",
        "             another process",
        "passed  b",
    ]


def test_where_there_is_no_room_beside_they_stand_below_their_row() -> None:
    lines = columns([["failed", MODES[0], WORDS]], 40, head=["STATUS", "ROW", "REASON"], names=[1])
    assert lines == [
        "STATUS  ROW",
        "    REASON",
        f"failed  {MODES[0]}",
        "    GPU memory was needed by another",
        "    process",
    ]


def test_a_word_is_never_broken_however_narrow_the_terminal_is() -> None:
    path = "/home/me/.local/state/ci-tasks/runs/20260101-120000-ckpt/01/log.txt"
    assert columns([["log of ckpt:", path]], 40) == ["log of ckpt:", f"    {path}"]
    assert wrapped("a bb ccc", 2) == ["a", "bb", "ccc"]


def test_a_short_line_beside_names_that_are_cut_stays_as_it_is() -> None:
    lines = columns([["8", "qwen3_4B[save-cpu]"], ["none"]], 20, names=[1])
    assert lines == ["8", "    qwen3…save-cpu]", "none"]


def test_what_all_names_begin_with_stands_once_above_the_table() -> None:
    assert columns([[mode, "8"] for mode in MODES], 30, head=["ROW", "GPUS"], names=[0]) == [
        "ROW: qwen3_4B_ckpt[save-…", "ROW             GPUS", "…cpu-load-cpu]  8", "…cpu-load-gpu]  8",
        "…gpu-load-cpu]  8", "…gpu-load-gpu]  8",
    ]  # fmt: skip


def test_names_lose_their_middles_at_the_parts_of_a_name() -> None:
    names = ["qwen2.5_0.5B_sglang_config_distributed", "glm52_6layer_deterministic_e2e"]
    assert columns([[name, "8"] for name in names], 30, names=[0]) == [
        "qwen2.5_…config_distributed  8",
        "glm52_…deterministic_e2e     8",
    ]


def test_a_row_takes_several_lines_where_nothing_else_helps() -> None:
    lines = columns(
        [["20260101-120000-ckpt.01", "failed", "h100a", MODES[0], WORDS]],
        50,
        head=["RUN", "STATUS", "HOST", "ROW", "REASON"],
    )
    assert lines == [
        "RUN                      STATUS  HOST",
        "    ROW",
        "    REASON",
        "20260101-120000-ckpt.01  failed  h100a",
        f"    {MODES[0]}",
        "    GPU memory was needed by another process",
    ]


def test_names_that_differ_in_their_middles_only_keep_them_apart() -> None:
    names = [f"{'a' * 20}{middle}{'b' * 20}" for middle in "xyz"]
    assert shortened(names, 12) is None
    assert len({*narrowest(names, 12)}) == 3 and max(map(cell_len, narrowest(names, 12))) < 41


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghij", 7, "ab…ghij"), ("日本語日本語", 7, "日…本語"), ("abc", 1, "…")],
)
def test_the_middle_is_left_out_since_the_ends_tell_most(text: str, width: int, expected: str) -> None:
    assert without_middle(text, width) == expected


def test_a_paragraph_hangs_from_its_first_line() -> None:
    assert paragraph("a: one two three", 12, "  ") == ["  a: one", "    two", "    three"]
    assert paragraph("a: one two three", None, "  ") == ["  a: one two three"]


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("0", None), ("wide", None), ("", None)])
def test_a_file_or_a_pipe_has_no_width_unless_columns_says_one(
    columns: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width


PART = st.sampled_from(["qwen3", "4B", "ckpt", "save", "optimizer", "gpu", "cpu", "load", "async", "short", "x", "2.5"])
NAMES = st.lists(PART, min_size=1, max_size=14).flatmap(
    lambda parts: st.lists(st.sampled_from("_-[."), min_size=len(parts), max_size=len(parts)).map(
        lambda gaps: "".join(part + gap for part, gap in zip(parts, gaps, strict=True))
    )
)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["megatron", "ckpt", "cpu-unittest"]), NAMES), max_size=40, unique=True))
def test_at_80_columns_no_two_rows_of_jobs_look_equal(names: Sequence[tuple[str, str]]) -> None:
    rows = [Row(label, label, None, name, None, "", 8, "a/b:c", {}, "self-hosted", None) for label, name in names]
    lines = jobs(sorted(rows, key=lambda row: row.label), 80)
    of_rows = lines[lines.index("") + 1 :]
    blocks = re.split(r"\n(?! )", "\n".join(of_rows))  # a row that takes several lines
    shown = [block for block in blocks if re.match("megatron|ckpt|cpu-unittest", block)]
    assert len(shown) == len(names) and len({*shown}) == len(names)


TEXTS = st.lists(st.text("abcXYZ日本.…", min_size=1, max_size=30), max_size=12).map(" ".join)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["failed", "passed"]), NAMES, TEXTS), min_size=1), st.integers(20, 140))
def test_all_words_are_shown_whole_and_a_line_is_too_long_only_where_one_cell_or_word_is(
    lines: Sequence[tuple[str, str, str]], width: int
) -> None:
    shown = columns(lines, width, names=[1])
    assert {word for line in lines for word in line[2].split()} <= {*" ".join(shown).split()}
    longest = max(cell_len(part) for status, name, text in lines for part in (status, name, *text.split()))
    assert all(cell_len(line) <= max(width, len("    ") + max(longest, 24)) for line in shown)


@pytest.mark.timeout(20)
def test_a_text_of_a_million_characters_is_cut_at_once() -> None:
    """A host may send it. Cut character by character it takes hours."""
    text = "a" * 1_000_000 + "end"
    assert without_middle(text, 10) == "aaa…aaaend"
    assert narrowest([text, "b" * 1_000_000], 10) == ["aaa…aaaend", "bbb…bbbbbb"]


def test_a_last_column_without_a_word_takes_no_room() -> None:
    lines = [("a" * 40, "passed", ""), ("b" * 40, "passed", "")]
    assert columns(lines, 50, head=("ROW", "STATUS", "REASON"))[0] == f"ROW{' ' * 37}  STATUS"
    assert "    REASON" in columns([*lines, ("c", "failed", "why")], 50, head=("ROW", "STATUS", "REASON"))
