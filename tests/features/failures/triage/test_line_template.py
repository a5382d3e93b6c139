"""What two runs' lines have in common."""

from __future__ import annotations

import pytest

from ci_tasks.features.failures.triage.line_template import masked

SAME = [
    ("numbers", "iteration 12/500 | loss: 1.2E+00", "iteration 13/500 | loss: 9.1E-01"),
    ("paths", "cannot open /root/a/b.json", "cannot open /home/me/runs/7/b.json"),
    ("URLs", "GET https://a.example/x?y=1 failed", "GET http://10.0.0.7:80/z failed"),
    ("ids", "job 3f2a9c01 ended", "job 77aa02bd ended"),
    ("ranks and nodes", "rank3 on node07 is up", "rank12 on node1 is up"),
    ("lists of numbers", "sizes [1, 2, 3]", "sizes [4, 5, 6, 7]"),
    ("progress bars", "loading: 10%|█▏    | 1/8", "loading: 90%|█████████ | 7/8"),
    ("spaces", "arguments   .....  8", "arguments ....... 16"),
]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_lines_that_differ_in_what_varies_have_one_template(one: str, other: str) -> None:
    assert masked(one) == masked(other)


DIFFERENT = [
    ("words", "no space left on device", "no such device"),
    ("names", "KeyError: 'loss'", "KeyError: 'reward'"),
    ("a path and a word", "open /root/x", "open x"),
]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_lines_that_say_something_else_have_two(one: str, other: str) -> None:
    assert masked(one) != masked(other)


def test_only_the_beginning_of_a_long_line_counts() -> None:
    assert masked("word " * 500) == masked("word " * 900)
