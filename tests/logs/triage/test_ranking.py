"""Which of several candidates is blamed, and whose cause it gets. With rules of our own: rules.yaml may change."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ci_tasks.agent.evidence import LinkedException, NotedException, ProcessEvidence, RunEvidence
from ci_tasks.logs.causes import JobKnowledge
from ci_tasks.logs.triage import log_triage
from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.logs.triage.rules import compiled
from ci_tasks.records import Triage
from tests.parts.cases import named

RULES = compiled(yaml.safe_load(Path(__file__).with_name("sample_rules.yaml").read_text()))


def traceback(exception: str, place: str = "/x/app.py") -> str:
    return f'Traceback (most recent call last):\n  File "{place}", line 3, in run\n    raise it\n{exception}\n'


DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
VALUE = traceback("ValueError: y")
DISK, MEMORY, GOING_ON = traceback("OSError: disk failure"), traceback("OSError: memory error"), "no report, going on"
MEMORY_LINE = "OSError: memory error"


BOOK = "is what the old keeper called it, and " + "she wrote on " * 10


def of(*parts: str) -> Triage:
    log = "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)
    return triage([log.encode()], rules=RULES, exit_code=1)


BLAMED = [
    ("a root before a bare exception", ["KeyError: 'x'", "disk failure"], "disk failure", "disk_full"),
    ("the first of two roots", ["disk failure", "memory error"], "disk failure", "disk_full"),
    ("a root before what wraps it", ["engine died", "job failed", "disk failure"], "disk failure", "disk_full"),
    ("a traceback's end before a line", ["KeyError: 'x'", VALUE], "ValueError: y", "unknown"),
    ("a root before a symptom", [traceback("AssertionError: x"), DISK], "disk fail", "disk_full"),
    ("a symptom before a wrapper", ["engine died", traceback("AssertionError: x")], "AssertionErr", "test_assertion"),
    ("a wrapper, if there is nothing else", ["step 1", "engine died"], "engine died", "vllm_engine_crash"),
    ("a warning is less", ["WARNING: disk failure", "memory error"], "memory error", "cuda_oom"),
    ("what was retried is nothing", ["disk failure, retrying", VALUE], "ValueError: y", "unknown"),
    ("a traceback that was only logged is less", [GOING_ON, DISK, "step 3", MEMORY], MEMORY_LINE, "cuda_oom"),
    ("not one of another rank", [f"[rank1]: {GOING_ON}", DISK, MEMORY], "OSError: disk failure", "disk_full"),
    ("the first link of a chain", [traceback("KeyError: 'x'"), DURING + VALUE], "KeyError", "unknown"),
    ("ignored", ["Exception ignored in: <x>", DISK, "engine died"], "engine died", "vllm_engine_crash"),
    ("the code that raised it", [traceback("KeyError: 'x'", "/x/reward.py"), "engine died"], "KeyError", "reward_fn"),
    ("a line of a book is no message", [f"disk failure {BOOK}.", "KeyError: 'x'"], "KeyError", "unknown"),
    ("a long message is", [f"disk failure {BOOK} /dev/sd1 2 3 4 5 6", "KeyError: 'x'"], "disk failure", "disk_full"),
    ("pytest's report", ["E   AssertionError: x", "E   disk failure", "E   memory error"], "E   A", "test_assertion"),
]  # fmt: skip


@named(("log", "line", "cause"), BLAMED)
def test_one_line_is_the_cause(log: list[str], line: str, cause: str) -> None:
    got = of(*log)
    assert line in got.line, f"{got.line}, and then {got.candidates}"
    assert got.cause == cause


def test_a_bare_exception_has_the_cause_of_its_chain() -> None:
    got = of(traceback("KeyError: 'x'"), DURING + DISK)
    answers = {one.line: (one.cause, one.verdict) for one in got.candidates} | {got.line: (got.cause, got.verdict)}
    assert answers["KeyError: 'x'"] == ("disk_full", "blocked")


def test_what_is_said_several_times_or_in_several_lines_is_one_candidate() -> None:
    indented = of("".join(f"      {row}\n" for row in traceback("AssertionError: x").splitlines()))
    assert (indented.text, indented.rule) == ("AssertionError: x", "assertion")
    for log in (
        [f"[rank{rank}]: disk failure on {rank}" for rank in range(8)],
        ["E   disk failure", "E   memory error"],
    ):
        assert (of(*log).line_no, of(*log).candidates) == (1, ())


def test_a_line_that_is_too_unlikely_is_not_named_but_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ("engine died", DISK, "memory error")
    assert of(*log).cause == "disk_full"
    monkeypatch.setattr(log_triage, "_LEAST", 1.0)
    got = of(*log)
    assert (got.cause, got.group, got.line_no, got.line) == ("unknown", "unknown", None, "")
    assert got.candidates[0].cause == "disk_full" and len(got.candidates) == 3


def test_success_after_the_last_failure_is_a_pass() -> None:
    assert triage([b"WARNING: disk failure\nstep 1\nstep 2\nall done\n"], rules=RULES).verdict == "passed"
    assert triage([b"all done\ndisk failure\n"], rules=RULES).verdict == "blocked"


def uncaught(at: float, name: str, message: str) -> ProcessEvidence:
    exception = NotedException(at, chain=(LinkedException(name, message),))
    return ProcessEvidence(pid=int(at), exceptions=(exception,))


def test_the_exception_that_ended_a_process_comes_before_what_the_log_says() -> None:
    """Of what the probe saw, the first that no process caught; not what only passes it on."""
    log = "".join(["disk failure\n", traceback("OSError: memory error"), traceback("KeyError: 'x'"), "engine died\n"])
    first, passed_on = uncaught(2, "builtins.KeyError", "'x'"), uncaught(1, "RuntimeError", "engine died")
    evidence = RunEvidence(processes=(first, passed_on))
    assert triage([log.encode()], 1, RULES).line == "OSError: memory error"
    assert triage([log.encode()], 1, RULES, JobKnowledge(evidence)).line == "KeyError: 'x'"


def test_a_line_that_passing_runs_have_too_is_not_the_reason() -> None:
    log, green = b"disk failure on 7\nstep 1\nmemory error\n", b"disk failure on 12\nall done\n"
    assert triage([log], 1, RULES).line == "disk failure on 7"
    assert triage([log], 1, RULES, JobKnowledge(passed=[[green]])).line == "memory error"
