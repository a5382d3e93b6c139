"""A triage as text: in a terminal no line is wider than it, and no word is cut."""

from __future__ import annotations

from ci_tasks.records import Triage
from ci_tasks.report.triage import describe

LONG = "OutOfMemory: " + " ".join(f"word-{number}-end" for number in range(60))
CONTEXT = ("a", LONG, '  File "/a/very/long/path/to/some/workspace/of/a/run/tests/test_x.py", line 3, in main')
FOUND = Triage(
    "cuda_oom", "failed", 2, LONG, "s#1", 0.9, context=CONTEXT, text=LONG, reason="no room", frames=("a.py:f",)
)


def test_in_a_terminal_every_line_fits_and_words_stay_whole() -> None:
    lines = describe(FOUND, 60)
    assert [line for line in lines if len(line) > 60 and "/a/very/long/path" not in line] == []
    begin, cut, _ = " ".join(line.strip() for line in lines[: lines.index("")]).partition("…")
    assert cut and begin.split()[-1] in LONG.split()
    assert CONTEXT[-1].split() == " ".join(lines[-3:]).split()[2:], "a line of the log is whole"


def test_in_a_file_a_fact_is_one_line() -> None:
    lines = describe(FOUND)
    assert lines[1] == "cause:      no room (cuda_oom)"
    assert lines[2].startswith("line:       OutOfMemory: word-0-end word-1-end ") and len(lines[2]) > 180


def test_the_prefixes_of_ci_are_left_out_of_the_lines_around() -> None:
    columns, stamp = "e2e-test-ckpt (test_x.py, 8)\tRun tests\t", "2026-11-22T10:00:00.1234567Z "
    context = (f"{columns}{stamp}    forward(device)", f"{stamp}ValueError: no", "2026-11-22T10:00:00.123 of the job")
    found = Triage("x", "failed", 12, context[1], "s#1", 0.9, context=context, text="ValueError: no")
    assert [line.strip() for line in describe(found, 60)[-3:]] == [
        "11 |     forward(device)",
        ">     12 | ValueError: no",
        "13 | 2026-11-22T10:00:00.123 of the job",
    ]
