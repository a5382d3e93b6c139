"""The coverage of a real checkout: the embedded sample, and a revision of a repository of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ci_tasks.features.coverage.collect import checkout_coverage
from ci_tasks.features.coverage.describe import main_coverage
from ci_tasks.features.coverage.diff import difference
from ci_tasks.features.recorder.records import READ
from ci_tasks.run.checkout_source import open_source
from tests.parts import git
from tests.parts.commands import run_command

SAMPLE = Path(__file__).resolve().parents[3] / "examples/tiny-slime"
TREE = ("tests", ".github")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The sample with one of its tests, since each is recorded in a process, as a repository with one commit."""
    for part in TREE:
        shutil.copytree(SAMPLE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for test in (tmp_path / "tests").glob("**/test_*.py"):
        if test.name != "test_tiny_ppo.py":
            test.unlink()
    return git.repository(tmp_path)


def test_the_sample_has_a_sensible_map() -> None:
    coverage = checkout_coverage(open_source(str(SAMPLE)))
    tests_by_name = {entry.path.rpartition("/")[2]: entry for label, entry in coverage.tests() if label.trigger}
    assert main_coverage(tests_by_name["test_tiny_ppo.py"]) == "Tiny-Dense, PPO"
    assert main_coverage(tests_by_name["test_tiny_moe_r3.py"]) == "Tiny-MoE-8x1, GRPO, rollout routing replay"
    assert "on 1, 8 GPUs" in main_coverage(tests_by_name["test_tiny_parallel_check.py"])
    assert tests_by_name["test_tiny_ckpt.py"].facts.checks.description == "3 assertions after the run, `--ci-test`"
    assert [label.label for label in coverage.labels if label.dynamic] == ["changed"]


def test_a_revision_is_read_from_git_and_compared_with_the_working_tree(repository: Path) -> None:
    test = repository / "tests/test_tiny_ppo.py"
    test.write_text(test.read_text().replace('"ppo"', '"gspo"'))
    now, before = (
        checkout_coverage(open_source(str(repository))),
        checkout_coverage(open_source(str(repository), "HEAD")),
    )
    changed = difference(before, now)
    assert (changed.lost, changed.gained) == (("PPO",), ("GSPO",))
    assert now.checkout.endswith(" with local changes") and str(repository) not in now.checkout


def test_a_test_that_leads_out_of_the_checkout_is_not_read(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret.py"
    secret.write_text("MODEL_NAME = 'secret'\n")
    link = repository / "tests/test_tiny_ppo.py"
    link.unlink()
    link.symlink_to(secret)
    coverage = checkout_coverage(open_source(str(repository)), static=True)
    missing = [entry.path for _, entry in coverage.tests() if entry.missing]
    assert "tests/test_tiny_ppo.py" in missing


@pytest.mark.parametrize("rev", [None, "HEAD"])
def test_static_executes_nothing_and_says_so(repository: Path, rev: str | None) -> None:
    messages: list[str] = []
    coverage = checkout_coverage(open_source(str(repository), rev), static=True, say=messages.append)
    assert {row.facts.origin for _, entry in coverage.tests() for row in entry.rows} == {READ}
    assert messages == ["tests are read, not executed (--static): only what their syntax trees show is used"]


@pytest.mark.parametrize("form", ["md", "json"])
def test_every_format_is_printed_alone(form: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command("coverage", repo=str(repository), format=form, static=True)
    out, err = capsys.readouterr()
    begins = {"md": "# CI coverage", "json": "{"}[form]
    assert out.startswith(begins) and "checkout: " in err
    run_command("coverage", repo=str(repository), format=form, static=True, diff="HEAD")
    output = capsys.readouterr().out
    assert json.loads(output)["lost"] == [] if form == "json" else "The same coverage." in output
