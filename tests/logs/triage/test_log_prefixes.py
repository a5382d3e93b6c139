"""What loggers, ranks, actors and CI put before a line is taken off; what a terminal would obey never gets through."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs.lines import segments, visible
from ci_tasks.logs.triage.log_prefixes import read

PREFIXES = yaml.safe_load(Path(__file__).with_name("prefixes.yaml").read_text())


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
