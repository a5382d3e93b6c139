"""Repeating a label whose runs are given: which rows run again, when it ends, what it says and leaves with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci_tasks.config import read
from ci_tasks.errors import Blocked, UnknownName
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.trials.repeat import repeat
from ci_tasks.workflow.model import Workflow
from tests.trials.given import Script, press

CONFIG = read("hosts: {local: {kind: local}}", "hosts.yaml")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> CheckoutSource:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/code.py").write_text("x\n")
    return CheckoutSource(tmp_path / "checkout", "given", Workflow("pr-test.yml", "PR Test", {}))


def ended(
    source: CheckoutSource, script: Script, runs: int, *, until_fail: bool = False, resume: bool = False, **how: Any
) -> int:
    request, options = RunRequest("ckpt", rows=tuple(script.letters), **how), ExecutionOptions(resume=resume)
    result = repeat(source, CONFIG, request, runs, until_fail, options, execute=script)
    return result.exit_code or 0


def lose_the_host() -> None:
    raise Blocked("box does not answer")


def rename_the_row() -> None:
    raise UnknownName("row", "a", ["b"])


def test_each_repetition_runs_only_the_rows_that_still_need_evidence(source: CheckoutSource) -> None:
    script = Script(steady="." * 6, broken="a" * 5, blocked="BBB")
    assert ended(source, script, 6) == 1
    everyone, not_blocked = ("steady", "broken", "blocked"), ("steady", "broken")
    assert [rows for _, rows in script.runs] == [everyone] * 3 + [not_blocked] * 2 + [("steady",)]


def test_fresh_packages_are_installed_once_for_all_repetitions(source: CheckoutSource) -> None:
    script = Script(steady="...")
    ended(source, script, 3, fresh_env=True)
    assert [request.fresh_env for request in script.requests] == [True, False, False]


# rows → runs asked for, repetitions that ran, exit code, the last line
ENDS: list[tuple[dict[str, Any], int, int, int, str]] = [
    ({"x": "..."}, 3, 3, 0, "3 runs: passes (1 row)"),
    ({"x": ".a."}, 3, 3, 1, "3 runs: flaky (1 row)"),
    ({"x": "aaaaa"}, 20, 5, 1, "5 runs: fails (1 row)"),
    ({"x": "BBB"}, 2, 3, 125, "3 runs: unclear (1 row)"),
    ({"x": "CCC"}, 1, 3, 130, "3 runs: unclear (1 row)"),
    ({"x": [".", lose_the_host, "."]}, 2, 3, 0, "3 runs: passes (1 row)"),
    ({"x": [".", press]}, 9, 2, 130, "2 runs: passes (1 row); interrupted, --resume continues"),
]


@pytest.mark.parametrize(("rows", "runs", "count", "code", "last"), ENDS)
def test_it_ends_when_the_answer_is_clear_with_the_rows_statuses_for_its_exit_code(
    rows: dict[str, Any], runs: int, count: int, code: int, last: str, source: CheckoutSource, capsys: Capture
) -> None:
    script = Script(**rows)
    assert ended(source, script, runs) == code
    assert len(script.runs) == count
    assert capsys.readouterr().out.splitlines()[-1] == f"ckpt: {last}"


def test_it_says_first_how_many_runs_and_how_long_they_may_take(
    source: CheckoutSource, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def seconds(*asked: object) -> float:
        assert asked == ("ckpt", ["local"], ("x", "y"))
        return 90.0

    monkeypatch.setattr("ci_tasks.trials.trial.expected_seconds", seconds)
    ended(source, Script(x="...", y="..."), 3)
    assert (
        capsys.readouterr().out.splitlines()[1]
        == "for a row at most 3 runs, about 90 s each with set-up if all rows run at once: 4 min 30 s"
    )


def test_until_fail_ends_all_rows_with_the_first_failure(source: CheckoutSource, capsys: Capture) -> None:
    assert ended(source, Script(x="..a", y="..."), 9, until_fail=True) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "ckpt: 6 runs: flaky (1 row), passes (1 row)"


def test_resume_makes_the_runs_that_are_left_and_without_it_all_are_made_again(source: CheckoutSource) -> None:
    assert ended(source, Script(x=[".", ".", press]), 5) == 130
    rest = Script(x="..")
    assert (ended(source, rest, 5, resume=True), len(rest.runs)) == (0, 2)
    assert ended(source, Script(x="....."), 5) == 0


def test_a_row_of_which_nothing_is_known_does_not_count_beside_a_failure(source: CheckoutSource) -> None:
    ended(source, Script(x="a", y="C"), 5, until_fail=True)
    assert ended(source, Script(x="", y=""), 5, until_fail=True, resume=True) == 1


@pytest.mark.parametrize("other", [{"image": "i"}, {"probe": False}])
def test_what_decides_how_rows_run_is_part_of_a_trial(source: CheckoutSource, other: dict[str, Any]) -> None:
    assert ended(source, Script(x=[".", ".", press]), 5) == 130
    rest = Script(x=".....")
    assert (ended(source, rest, 5, resume=True, **other), len(rest.runs)) == (0, 5)


def test_the_end_shows_for_each_way_of_failing_the_line_and_the_log_of_its_last_time(
    source: CheckoutSource, capsys: Capture
) -> None:
    ended(source, Script(x="a.abB."), 5)
    out = capsys.readouterr().out
    assert "  2 × Error#a\n      the line of a\n      log: /runs/3/x/log\n" in out
    assert "  1 × Error#b\n      the line of b\n      log: /runs/4/x/log\n" in out
    assert "not counted of x: 1 blocked (the reason)\n" in out
    ended(source, Script(x="h"), 1)
    assert "  1 × Error#h\n      rank 2 computes\n      log: " in capsys.readouterr().out, (
        "not the last line of its log"
    )
    assert out.count("image:  none → ours; it is pinned") == 1


def test_an_error_is_reported_after_the_earlier_repetitions(source: CheckoutSource, capsys: Capture) -> None:
    with pytest.raises(UnknownName):
        ended(source, Script(x=[".", rename_the_row]), 3)
    assert "1 run: passes (1 row)" in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(Blocked, match="does not answer"):
        ended(source, Script(x=[lose_the_host]), 3)
    assert "  1  x" not in capsys.readouterr().out
