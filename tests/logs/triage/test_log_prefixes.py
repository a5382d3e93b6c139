"""What loggers, ranks, actors and CI put before a line is taken off; what a terminal would obey never gets through."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs.lines import segments, visible
from ci_tasks.logs.triage.log_prefixes import read

PREFIXES = [
    # what stands there, the text, who spoke, how loud
    ("ValueError: x", "ValueError: x", "", ""),
    # CI
    ("2025-10-10T06:00:00.1234567Z ValueError: x", "ValueError: x", "", ""),
    ("2025-10-10T06:00:00.1Z ##[error]Process completed", "Process completed", "", "error"),
    ("e2e-test (a.py, 2)\tRun tests\t2025-10-10T06:00:00.1Z ValueError: x", "ValueError: x", "", ""),
    ("e2e-test\tUNKNOWN STEP\t\ufeff2025-10-10T06:00:00.1Z ValueError: x", "ValueError: x", "", ""),
    ("\ufeff2025-10-10T06:00:00.1Z ValueError: x", "ValueError: x", "", ""),
    ("::error file=a.py,line=3,title=x: y::x failed", "x failed", "", "error"),
    # Ray
    ("(WorkerDict pid=77) ValueError: x", "ValueError: x", "(WorkerDict pid=77)", ""),
    ("\x1b[36m(A pid=3)\x1b[0m ValueError: x", "ValueError: x", "(A pid=3)", ""),
    ("(A pid=3) x failed [repeated 3x across cluster]", "x failed", "(A pid=3)", ""),
    ("(raylet) x failed", "x failed", "(raylet)", ""),
    ("(raylet) [2025-05-20 10:14:55,120 E 310 330] (raylet) node_manager.cc:85: x failed", "x failed", "(raylet)", "e"),
    ("2025-05-20 10:14:55,120\tINFO worker.py:1888 -- Started", "Started", "", "info"),
    # other loggers
    ("2025-04-03 10:00:01,123 - ERROR - x failed", "x failed", "", "error"),
    ("2024-12-23 15:30:17.113183: E external/xla/cuda_fft.cc:485] x failed", "x failed", "", "e"),
    # ranks
    ("[rank3]: ValueError: x", "ValueError: x", "[rank3]", ""),
    ("[rank3]:[E702 03:11:08.884 ProcessGroupNCCL.cpp:632] Watchdog", "Watchdog", "[rank3]", "e"),
    ("(A pid=3) [rank1]: ValueError: x", "ValueError: x", "(A pid=3)[rank1]", ""),
    ("[2025-03-01 09:12:40 DP1 TP3 EP3] ValueError: x", "ValueError: x", "DP1 TP3 EP3", ""),
    ("3: [rank3]: ValueError: x", "ValueError: x", "3:[rank3]", ""),  # srun --label
    # frames of lines
    ("    | ValueError: x", "ValueError: x", "", ""),
    ("  + Exception Group Traceback (x):", "Exception Group Traceback (x):", "", ""),
    # loggers
    ("ERROR 05-06 14:21:20 [core.py:700]     raise x", "    raise x", "", "error"),
    ("(VllmWorker rank=1 pid=7) ERROR 01-21 13:47:36 core.py:205] x", "x", "(VllmWorker rank=1 pid=7)", "error"),
    ("E0702 03:11:12.000000 77 torch/distributed/api.py:874] failed", "failed", "", "e"),
    ("WARNING: x failed", "x failed", "", "warning"),
    # no prefix, although it looks like one
    ("Error: x failed", "Error: x failed", "", ""),
    ("(1) The process is killed", "(1) The process is killed", "", ""),
    ("[Errno 98] address already in use", "[Errno 98] address already in use", "", ""),
]


@pytest.mark.parametrize(("raw", "text", "origin", "level"), PREFIXES, ids=[row[0][:50] for row in PREFIXES])
def test_what_stands_before_the_text_is_taken_off(raw: str, text: str, origin: str, level: str) -> None:
    line = read(7, raw.encode())
    assert (line.text, line.origin, line.level, line.number) == (text, origin, level, 7)


TELLING = [b"\x1b", b"[", b"]", b"\x07", b"31m", b"\\", b"\r", b"\n", b"\x9b", b"\xc2\x9b", b"ERROR: ", b"0;"]
TEXTS = st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass"))
PARTS = st.lists(st.one_of(st.binary(max_size=12), st.sampled_from(TELLING), TEXTS), max_size=20).map(b"".join)


@settings(max_examples=60)
@given(PARTS)
def test_nothing_that_a_terminal_obeys_gets_through(raw: bytes) -> None:
    for segment in segments(raw):
        line = read(1, segment)
        assert all(char.isprintable() or char == "\t" for char in line.shown + line.text + line.origin)


def test_what_is_shown_keeps_its_prefix_up_to_a_length() -> None:
    assert read(1, b"\x1b[36m(A pid=3)\x1b[0m boom\n").shown == "(A pid=3) boom"
    assert len(visible(b"x" * 1_000_000)) == len(read(1, b"x" * 1_000_000).text) == 4000


SEGMENTS = [
    (b"plain\n", [b"plain\n"]),
    (b"windows\r\n", [b"windows"]),
    (b"1%\r50%\r100%\n", [b"1%", b"50%", b"100%"]),
    (b"\r\r  \r", [b""]),
    (b"80%\rTraceback (most recent call last):\n", [b"80%", b"Traceback (most recent call last):"]),
]


@pytest.mark.parametrize(("raw", "parts"), SEGMENTS)
def test_a_progress_bar_is_several_lines_in_one(raw: bytes, parts: list[bytes]) -> None:
    assert segments(raw) == parts
