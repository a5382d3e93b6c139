"""The coverage of a real checkout: the embedded sample, and a revision of a repository of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.coverage.command import source_coverage
from ci_tasks.features.coverage.coverage import difference
from ci_tasks.features.recorder import record
from ci_tasks.features.recorder.syntax import READ, RECORDED
from ci_tasks.run.checkout_source import open_source
from tests.parts import git
from tests.parts.commands import run_command

SAMPLE = Path(__file__).resolve().parents[3] / "examples/tiny-slime"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The sample with one of its tests, since each is recorded in a process, as a repository with one commit."""
    for part in ("tests", ".github"):
        shutil.copytree(SAMPLE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for test in (tmp_path / "tests").glob("**/test_*.py"):
        if test.name != "test_tiny_ppo.py":
            test.unlink()
    return git.repository(tmp_path)


def test_the_sample_has_a_sensible_map() -> None:
    coverage = source_coverage(open_source(str(SAMPLE)))
    entries = {test.test.rpartition("/")[2]: test for label in coverage.labels if label.trigger for test in label.tests}
    assert entries["test_tiny_ppo.py"].coverage == ("Tiny-Dense", "PPO")
    assert entries["test_tiny_moe_r3.py"].coverage == ("Tiny-MoE-8x1", "rollout routing replay")
    assert [label.label for label in coverage.labels if label.dynamic] == ["changed"]
    assert coverage.checkout == "the embedded sample"


def test_a_revision_is_read_from_git_and_compared_with_the_working_tree(repository: Path) -> None:
    test = repository / "tests/test_tiny_ppo.py"
    test.write_text(test.read_text().replace('"ppo"', '"gspo"'))
    now, before = (source_coverage(open_source(str(repository), rev)) for rev in (None, "HEAD"))
    changed = difference(before, now)
    assert (changed.lost, changed.gained) == (("PPO",), ("GSPO",))
    commit = git.git(repository, "rev-parse", "HEAD")[:7]
    assert (before.checkout, now.checkout) == (at := f"owner/repository at {commit}", f"{at} with local changes")


def test_nothing_is_executed_unless_it_is_to_be_recorded(repository: Path) -> None:
    messages: list[str] = []
    coverage = source_coverage(open_source(str(repository)), say=messages.append)
    assert {row.origin for row in coverage.rows().values()} == {READ}
    assert not any("executing" in message for message in messages)
    if why := record.unavailable_reason():
        pytest.skip(f"no sandbox here: {why}")
    coverage = source_coverage(open_source(str(repository)), record=True, say=messages.append)
    assert RECORDED in {row.origin for row in coverage.rows().values()}
    assert any("executing this checkout's tests" in message for message in messages)


def test_to_record_without_a_sandbox_is_an_error(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "unavailable_reason", lambda: "no namespaces")
    with pytest.raises(UsageError, match="no namespaces"):
        source_coverage(open_source(str(repository)), record=True)
    with pytest.raises(UsageError, match="not a revision"):
        source_coverage(open_source(str(repository), "HEAD"), record=True)


@pytest.mark.parametrize("json_", [False, True])
def test_every_format_is_printed_alone(json_: bool, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command("coverage", repo=str(repository), json=json_)
    out, err = capsys.readouterr()
    assert out.startswith("{" if json_ else "# CI coverage") and "checkout: " in err
    assert str(repository) not in out
    run_command("coverage", repo=str(repository), json=json_, diff="HEAD")
    output = capsys.readouterr().out
    assert json.loads(output)["lost"] == [] if json_ else "The same coverage." in output
