"""The loop: what runs next, what a journal remembers, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Deviation
from ci_tasks.errors import UsageError
from ci_tasks.records import ONLY_TESTS, Evidence, RunRecord, Triage
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.trials.rules import AB, FAILED, MISSING, PASSED, Outcome, Repeat, TrialRule, TrialVerdict
from ci_tasks.trials.trial import Trial, TrialRun, outcome_of, pinned
from ci_tasks.workflow.model import Workflow
from tests.parts.git import git, repository
from tests.trials.given import press


class Machine:
    """Yours always fails, the base never. `stop`: ^C after so many runs."""

    def __init__(self, stop: int = 1000) -> None:
        self.asked: list[TrialRun] = []
        self.stop, self.count = stop, 0

    def __call__(self, run: TrialRun) -> Iterator[Outcome]:
        self.asked.append(run)
        for row in run.rows:
            if self.count == self.stop:
                raise KeyboardInterrupt
            self.count += 1
            status, signature = (FAILED, "x") if run.setting == "yours" else (PASSED, "")
            yield Outcome(run.setting, row, status, signature, run=f"run-{self.count}", seconds=7.0)


def ab(row: str) -> TrialRule:
    return AB("base", "yours")


def trial(machine: Any, rows: Sequence[str] = ("r1", "r2"), tree: str = "t", **more: Any) -> Trial:
    settings: Mapping[str, str] = {"base": "b", "yours": tree}
    return Trial("compare", settings, rows, machine, **more)


@pytest.mark.parametrize("stop", range(13))
def test_a_trial_goes_on_where_ctrl_c_ended_it(stop: int, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Machine(stop), Machine()
    with trial(first) as begun:
        begun.run(ab)
    assert begun.is_interrupted == (stop < 12)
    capsys.readouterr()
    with trial(second) as rest:
        rest.run(ab)
    assert first.count + second.count == 12
    assert {row: rest.verdict(row).word for row in rest.rows} == {"r1": "yours", "r2": "yours"}
    assert capsys.readouterr().out.count("[run-") == 12, "what ran before is shown too"


def test_a_setting_runs_all_rows_that_want_it_at_once_and_a_row_with_its_word_no_more() -> None:
    machine = Machine()
    with trial(machine) as whole:
        whole.run(ab)
    assert [run.rows for run in machine.asked] == [("r1", "r2")] * 6
    assert [run.number for run in machine.asked if run.setting == "base"] == [1, 2, 3]


def test_the_interrupt_of_a_run_that_ends_its_rows_by_itself_ends_the_trial() -> None:
    def pressed(run: TrialRun) -> Iterator[Outcome]:
        press()
        yield Outcome("yours", "r1", "cancelled")

    with trial(pressed) as ended:
        ended.run(ab)
    assert ended.is_interrupted
    assert [ended.verdict(row).word for row in ended.rows] == ["cancelled", "cancelled"]


def test_another_tree_begins_another_journal_and_two_commands_cannot_have_one() -> None:
    with trial(Machine(3)) as first:
        first.run(ab)
        with pytest.raises(UsageError, match="another command runs this compare"), trial(Machine()):
            pass
    with trial(Machine(), tree="edited") as other:
        assert (other.path != first.path, other.outcomes) == (True, [])
        assert [trial.path.name.rpartition("-")[0] for trial in (first, other)] == ["compare-r1"] * 2
    with trial(Machine(), resume=False) as again:
        assert (again.path, again.outcomes) == (first.path, [])
        assert again.how_to_continue == "the same command without --fresh continues from here"


def test_a_journal_may_end_in_half_a_line_and_nothing_else() -> None:
    with trial(Machine(3)) as first:
        first.run(ab)
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:-9])  # killed as it wrote: that run is made again
    second = Machine()
    with trial(second) as rest:
        rest.run(ab)
    assert second.count == 10
    for text in (whole + b"nonsense\n", whole.replace(b'"r1"', b'"r3"', 1)):
        first.path.write_bytes(text)
        with pytest.raises(UsageError, match="not a trial's file"), trial(Machine()):
            pass
    first.path.write_bytes(whole[:20])  # killed as it wrote the first line
    with trial(Machine()) as fresh:
        assert fresh.outcomes == []
        assert json.loads(fresh.path.read_bytes())["question"] == "compare"


ASKED = (Deviation("tests", "all of the row", "tests/test_a.py::nope", ONLY_TESTS),)
OF_TESTS = [
    ("failed", Evidence("junit"), ASKED, MISSING),
    ("vacuous", Evidence("none"), ASKED, MISSING),
    ("failed", Evidence("junit"), (), FAILED),  # the row's own options deselect them
    ("failed", Evidence("script"), ASKED, FAILED),
    ("failed", Evidence("junit", 1, 1), ASKED, FAILED),  # it cannot be collected
    ("vacuous", Evidence("junit", skipped=1), ASKED, FAILED),  # it is there
]


def test_a_run_without_a_package_says_what_it_lacks() -> None:
    triage = Triage("import_error", "blocked", 1, "x", "no-module#1", 0.9, group="dependency")
    outcome = outcome_of("yours", RunRecord("r.01", "quick", "r1", "local", "blocked", "x", triage=triage))
    assert (outcome.status, outcome.lacks, outcome.signature) == ("blocked", True, "no-module#1")


@pytest.mark.parametrize(("status", "evidence", "deviations", "expected"), OF_TESTS)
def test_a_test_that_the_row_does_not_have_says_nothing_of_the_code(
    status: str, evidence: Evidence, deviations: tuple[Deviation, ...], expected: str
) -> None:
    record = RunRecord("r.01", "quick", "r1", "local", status, "no test", evidence=evidence, deviations=deviations)
    outcome = outcome_of("yours", record)
    assert (outcome.status, outcome.reason) == (expected, "no test")
    assert isinstance(AB("base", "yours").next([outcome]), TrialVerdict) == (expected == MISSING), "it is not run again"


@pytest.mark.parametrize("status", ["blocked", "lost", "cancelled"])
def test_what_said_nothing_of_the_code_is_run_again(status: str) -> None:
    def only_r2_runs(run: TrialRun) -> Iterator[Outcome]:
        for row in run.rows:
            yield Outcome(run.setting, row, PASSED if row == "r2" else status)

    def words(perform: Any) -> dict[str, str]:
        with Trial("repeat", {"yours": "t"}, ("r1", "r2"), perform) as repeated:
            repeated.run(lambda row: Repeat("yours", 3))
        return {row: repeated.verdict(row).word for row in repeated.rows}

    assert words(only_r2_runs) == {"r1": "unclear", "r2": "passes"}
    for runs in (3, 0):
        assert words(machine := Machine()) == {"r1": "unclear", "r2": "passes"}
        assert [run.rows for run in machine.asked] == [("r1",)] * runs


def test_a_secret_of_a_reason_is_masked_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-value")

    def perform(run: TrialRun) -> Iterator[Outcome]:
        yield Outcome("yours", "r1", "blocked", reason="cannot log in with s3cr3t-value")
        raise KeyboardInterrupt

    with trial(perform, more={"why": "s3cr3t-value"}) as ended:
        ended.run(ab)
    assert "s3cr3t" not in ended.path.read_text()


def test_the_directory_of_the_first_command_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))
    with trial(Machine()):
        assert (tmp_path / "home").stat().st_mode & 0o77 == 0, "runs will lie there"


def commit(checkout: Path) -> str:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message=more")
    return git(checkout, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with an uncommitted edit, on a main that origin/main lags behind."""
    path = repository(tmp_path / "it's a checkout", {"code.py": "base\n"})
    git(path, "update-ref", "refs/remotes/origin/main", "HEAD")
    (path / "code.py").write_text("committed\n")
    commit(path)
    (path / "code.py").write_text("as it was\n")
    return path


def source(checkout: Path, rev: str | None = None) -> CheckoutSource:
    return CheckoutSource(checkout, "here", Workflow("pr-test.yml", "PR Test", {}), rev=rev)


def _edit(checkout: Path) -> None:
    (checkout / "code.py").write_text("edited since\n")
    (checkout / "new.py").write_text("new\n")


def _throw_away(checkout: Path) -> None:
    git(checkout, "reset", "--quiet", "--hard", "origin/main")


@pytest.mark.parametrize("happens", [_edit, commit, _throw_away])
def test_what_happens_to_the_checkout_meanwhile_does_not_matter(
    happens: Callable[[Path], object], checkout: Path, tmp_path: Path
) -> None:
    with pinned(source(checkout), None) as pin:
        happens(checkout)
        code = pin.take(checkout, None)
        assert code.checkout == pin.checkout
        assert (code.read_file("code.py"), code.read_file("new.py")) == ("as it was\n", None)
        assert (code.checkout.path, code.checkout.dirty) == (str(checkout), ("code.py",))
        assert git(pin.directory, "show", "origin/main:code.py") == "base"
    assert not pin.directory.exists()


def test_unchanged_checkout_is_taken_itself_and_branch_that_moves_on_as_it_was(checkout: Path, tmp_path: Path) -> None:
    with pinned(source(checkout), None) as pin:
        unchanged = pin.take(checkout, None)
        assert (unchanged.checkout, unchanged.checkout.path) == (pin.checkout, str(checkout)), "it is taken itself"
    before = commit(checkout)
    _edit(checkout)
    with pinned(source(checkout, "main"), "main~1") as pin:
        commit(checkout)
        code = pin.take(checkout, "main")
        assert (code.checkout.commit, code.read_file("code.py")) == (before, "as it was\n")
        assert git(pin.directory, "show", "origin/main:code.py") == "committed"
