"""Whole logs in cases/, each with what its triage has to say: `ci_tasks.logs.lines` and `ci_tasks.logs.causes`, too.

A case is a log below a head of lines `#: key value`: `cause`, `verdict`, `line` (a part of the line to be blamed,
none where nothing failed), `why` (what the case is about), and `exit` where the job's exit code belongs to it.

The rest of each answer is in answers.json, a golden file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.logs.triage.rules import shipped
from tests.parts.golden import Golden

DIRECTORY = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.log"))
whole = (kept := Golden(DIRECTORY.with_name("answers.json"))).fixture()
triage = kept.of(triage)
MARK = b"#: "
KEYS = {"cause", "verdict", "line", "why", "exit"}


@dataclass(frozen=True)
class Case:
    cause: str
    verdict: str
    log: bytes
    why: str
    line: str = ""
    exit: int | None = None


def read(name: str) -> Case:
    """The case of a file; an error where its head is none."""
    text = (DIRECTORY / f"{name}.log").read_bytes()
    head: dict[str, str] = {}
    while text.startswith(MARK):
        first, _, text = text.partition(b"\n")
        key, _, value = first[len(MARK) :].decode().partition(" ")
        assert key in KEYS and key not in head, f"{name}: {key} is unknown or there twice; a head has {sorted(KEYS)}"
        head[key] = value
    assert {"cause", "verdict", "why"} <= set(head), f"{name}: cause, verdict and why are needed"
    exit_code = int(head["exit"]) if "exit" in head else None
    return Case(head["cause"], head["verdict"], text, head["why"], head.get("line", ""), exit_code)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_is_understood(name: str) -> None:
    case = read(name)
    assert case.line.encode() in case.log, f"{case.line!r} is not in it"
    got = triage([case.log], exit_code=case.exit)
    assert case.line in got.line and bool(case.line) == bool(got.line), f"{case.why}: {got}"
    assert (got.cause, got.verdict) == (case.cause, case.verdict), f"{case.why}: {got}"
    if got.line_no is None:
        assert got.line == "" and not got.context
        return
    blamed = case.log.split(b"\n")[got.line_no - 1].replace(b"\x1b[1m", b"").replace(b"\x1b[0m", b"")
    assert got.line.encode() in blamed
    assert got.line in got.context or got.cause == "unknown"


def test_every_cause_of_the_rules_has_a_case() -> None:
    rules = shipped()
    causes = {rule.cause for rule in rules.rules} | {place.cause for place in rules.places} | {"pass", "unknown"}
    assert causes - {read(name).cause for name in NAMES} == {""}, "that of rules which know no cause"
