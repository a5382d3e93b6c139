"""Comparing rows whose runs are given: what runs on which side, what is not counted, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import registry
from ci_tasks.config import read
from ci_tasks.errors import UsageError
from ci_tasks.given_values import GivenValues
from ci_tasks.run.checkout_source import CheckoutSource, open_source
from ci_tasks.trials.compare import ComparisonResult, compare
from ci_tasks.trials.options import CompareOptions
from tests.parts.git import repository
from tests.trials.given import Script, press, workflow

CONFIG = read("hosts: {local: {kind: local}}", "hosts.yaml")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path, home: Path) -> CheckoutSource:
    """A checkout with a commit `main`, whose label has the row a, and a change on top, with the rows a and b."""
    path = repository(tmp_path / "checkout", {".github/workflows/pr-test.yml": workflow("a.py", "b.py")})
    (path / "code.py").write_text("changed\n")
    return open_source(str(path))


def compared(source: CheckoutSource, script: Script, *rows: str, **more: Any) -> ComparisonResult:
    options = {"label": "quick", "only": ",".join(rows or ("a",)), "base": "main", "repo": str(source.path)}
    return compare(CompareOptions(**{**options, "fresh": True, **more}), CONFIG, execute=script)


def test_a_regression_takes_three_runs_of_each_side_in_turn(source: CheckoutSource, capsys: Capture) -> None:
    script = Script(base_a="...", a="xxx")
    result = compared(source, script)
    assert (result.verdict, result.exit_code) == ("yours", 1)
    sides = [name for name, _ in script.runs]
    assert all({*sides[at : at + 2]} == {"base", "yours"} for at in (0, 2, 4))
    out = capsys.readouterr().out
    assert "for a row at most 20 runs; no earlier run says how long each takes\n" in out
    assert "a: the sides ran on different GPUs: yours 2,3; base 0,1" in out
    assert "yours; wrong in at most 5 % of comparisons" in out


def test_of_several_rows_those_that_fail_are_compared_and_that_failure_is_no_sample(source: CheckoutSource) -> None:
    script = Script(a="xxxx", base_a="...", b=".")
    result = compared(source, script, "a", "b")
    assert {row.row: row.verdict for row in result.rows} == {"a": "yours", "b": "passes"}
    assert script.runs[0] == ("yours", ("a", "b"))
    assert (result.rows[0].yours.runs, script.letters["a"]) == (3, [])


def test_runs_that_said_nothing_are_made_up_for_until_they_outnumber_the_others(source: CheckoutSource) -> None:
    result = compared(source, Script(base_a=".B..", a="xxx"))
    assert (result.verdict, result.rows[0].base.inconclusive) == ("yours", {"blocked": 1})
    result = compared(source, Script(base_a="BBB", a="x"))
    assert (result.verdict, result.exit_code) == ("blocked", 125)


def test_ctrl_c_ends_it_without_a_word(source: CheckoutSource) -> None:
    script = Script(base_a=[press], a=[press])
    result = compared(source, script)
    assert (result.verdict, result.exit_code, len(script.runs)) == ("cancelled", 130, 1)


def test_the_same_command_goes_on_and_one_of_a_single_test_is_another(source: CheckoutSource) -> None:
    undecided = compared(source, Script(base_a="...", a="x.."), max_runs=6)
    assert (undecided.verdict, undecided.exit_code) == ("cannot tell", 4)
    assert undecided.rows[0].why == "yours failed in 1 of 3 runs, the base in 0 of 3 runs: neither is shown"
    again = compared(source, Script(base_a="..", a="xx"), max_runs=4, fresh=False)
    assert (again.rows[0].yours.runs, again.rows[0].yours.failed) == (5, 3)
    given = replace(CONFIG, given=GivenValues(tests=("a.py::test_x",)))
    options = CompareOptions(label="quick", only="a", base="main", repo=str(source.path))
    one_test = compare(options, given, execute=Script(base_a="...", a="xxx"))
    assert (one_test.verdict, one_test.rows[0].yours.runs) == ("yours", 3)


def test_cis_history_comes_before_any_run_and_needs_a_repository_on_github(
    source: CheckoutSource, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    script = Script(base_a="...", a="xxx")
    with pytest.raises(UsageError, match="--ci needs a checkout whose origin is on GitHub") as caught:
        compared(source, script, ci=True)
    assert "run it without --ci" in caught.value.hint and script.runs == []
    monkeypatch.setattr(registry, "hook", lambda name: lambda *asked: [f"{name} {asked[1:]}"])
    compared(source, script, ci=True)
    shown = capsys.readouterr().out
    names = ("e2e-test-quick (a.py, 0)",)
    assert shown.index(f"ci_row_history {('.github/workflows/pr-test.yml', {'a': (names, '')})}") < shown.index(
        "comparing"
    )


def test_what_cannot_be_compared_is_refused(source: CheckoutSource) -> None:
    file = source.path / ".github/workflows/pr-test.yml"
    file.write_text(workflow("c.py", "b.py"))
    with pytest.raises(UsageError, match=r"^the base \w{12} has no row c of label quick: nothing to compare it with\n"):
        compared(source, Script(), "c")
    file.write_text(workflow())
    with pytest.raises(UsageError, match="label quick has no row: its `if:` is false"):
        compared(source, Script(), "")
    file.write_text(workflow("a.py", "b.py"))
    (source.path / "code.py").unlink()
    with pytest.raises(UsageError, match="your tree equals the base"):
        compared(source, Script())
