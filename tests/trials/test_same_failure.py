"""Pairs of logs: one failure that looks different, and two that look alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.records import Triage
from ci_tasks.trials.rules import DIFFERENT_FAILURE, REPRODUCED, SAME_KIND
from ci_tasks.trials.same_failure import Comparison, compare

_FOLDER = Path(__file__).parent
_FILES = [
    yaml.safe_load((_FOLDER / name).read_text())
    for name in ("pairs.yaml", "more_pairs.yaml", "third_pairs.yaml", "fourth_pairs.yaml", "fifth_pairs.yaml")
]
PAIRS = {part: [pair for file in _FILES for pair in file[part]] for part in ("different", "same")}


def compared(pair: dict[str, Any]) -> Comparison:
    codes = pair.get("codes", [1, 1])
    ci, here = pair["ci"], pair["here"]
    if isinstance(here, dict):
        text = ci
        for old, new in here["replace"]:
            assert old in text, f"{old!r} is not in the log"
            text = text.replace(old, new)
        here = text
    return compare(*(triage([log.encode()], exit_code=code) for log, code in zip((ci, here), codes, strict=True)))


def _rows(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", PAIRS[name], ids=[pair["name"] for pair in PAIRS[name]])


@_rows("different")
def test_two_failures_that_look_alike_are_told_apart(pair: dict[str, Any]) -> None:
    got = compared(pair)
    assert got.outcome != REPRODUCED, got
    assert "kind" not in pair or got.outcome == pair["kind"], got
    assert got.differs or not got.same, "what differs is named, or nothing was shown to be the same"


@_rows("same")
def test_one_failure_that_looks_different_is_recognized(pair: dict[str, Any]) -> None:
    got = compared(pair)
    assert got.outcome == REPRODUCED, got
    assert got.same and not got.differs


def test_a_record_of_an_earlier_version_has_a_signature_alone() -> None:
    old = Triage("x", "failed", 1, "line", "kl#1", 0.9)
    assert compare(old, old).outcome == SAME_KIND
    assert (
        compare(Triage("unknown", "failed", None, "", "", 0.0), replace(old, signature="")).outcome == DIFFERENT_FAILURE
    )
