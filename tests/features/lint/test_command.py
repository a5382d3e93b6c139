"""`lint` as a person calls it, on the embedded sample and on a copy of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ci_tasks import resources
from tests.fixtures import CommandResult, Person


def lint(*arguments: str, repo: Path, home: Path) -> CommandResult:
    return Person(home, home).ci_tasks("lint", "--repo", str(repo), *arguments)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sample, without what is wrong with it on purpose but for one finding."""
    copy = tmp_path / "checkout"
    shutil.copytree(resources.path("examples/tiny-slime"), copy)
    with (copy / "tests/test_batching.py").open("a") as out:
        out.write('\nif __name__ == "__main__":\n    raise SystemExit(pytest.main([__file__]))\n')
    subprocess.run(["git", "init", "--quiet", str(copy)], check=True)
    return copy


def test_the_sample_has_one_file_that_runs_nothing_and_images_that_move(tmp_path: Path) -> None:
    person = Person(tmp_path / "home", tmp_path)
    result = person.ci_tasks("lint", "--repo", str(resources.path("examples/tiny-slime")), "--json")
    assert result.code == 1, result.err
    assert (tmp_path / "home").stat().st_mode & 0o77 == 0, "runs will lie there"
    findings = json.loads(result.out)
    assert {(finding["rule"], finding["file"]) for finding in findings} == {
        ("runs-nothing", "tests/test_batching.py"),
        ("moving-image", ".github/workflows/pr-test.yml.j2"),
    }


def test_a_finding_of_an_ignored_rule_is_not_reported(checkout: Path, tmp_path: Path) -> None:
    assert lint(repo=checkout, home=tmp_path).out.endswith("\n2 findings\n")
    (checkout / "tests/test_new.py").write_text("")
    result = lint("--ignore", "moving-image,no-timeout", "--ignore", "unreachable", repo=checkout, home=tmp_path)
    assert (result.code, result.out.splitlines()[-1]) == (1, "1 finding")
    (checkout / "tests/test_new.py").unlink()
    result = lint("--ignore", "moving-image", repo=checkout, home=tmp_path)
    assert (result.code, result.out.splitlines()[-1]) == (0, "no finding")


def test_git_matches_the_pathspecs_of_the_workflow_with_all_files(checkout: Path, tmp_path: Path) -> None:
    """`*` crosses `/` in git's pathspecs: a helper in tests/test_agent is selected, a test in tests/utils is not."""
    for name in ("tests/test_agent/fakes.py", "tests/test_agent/test_new.py", "tests/utils/test_new.py"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("")
    result = lint("--json", "--ignore", "moving-image", repo=checkout, home=tmp_path)
    assert {(finding["rule"], finding["file"]) for finding in json.loads(result.out)} == {
        ("no-num-gpus", "tests/test_agent/fakes.py"),
        ("unregistered", "tests/test_agent/test_new.py"),
        ("unreachable", "tests/utils/test_new.py"),
    }
