"""`lint` as a person calls it, on the embedded sample and on a copy of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks import resources


def lint(*words: str, repo: Path, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ci_tasks.cli import main; main()", "lint", "--repo", str(repo), *words]
    environ = {**os.environ, "CI_TASKS_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=home, check=False)


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
    said = lint("--json", repo=resources.path("examples/tiny-slime"), home=tmp_path)
    assert said.returncode == 1, said.stderr
    found = json.loads(said.stdout)
    assert {(one["rule"], one["file"]) for one in found} == {
        ("runs-nothing", "tests/test_batching.py"),
        ("moving-image", ".github/workflows/pr-test.yml.j2"),
    }


def test_a_baseline_is_lived_with_and_only_shrinks(checkout: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "lint.json"
    assert lint("--write-baseline", str(baseline), repo=checkout, home=tmp_path).returncode == 0
    known = lint("--baseline", str(baseline), repo=checkout, home=tmp_path)
    assert (known.returncode, known.stdout.splitlines()[-1]) == (0, "no finding; 2 more in the baseline")
    (checkout / "tests/test_new.py").write_text("")
    assert (
        "tests/test_new.py is in no job's matrix"
        in lint("--baseline", str(baseline), repo=checkout, home=tmp_path).stdout
    )
    (checkout / "tests/test_new.py").unlink()
    for file in (checkout / ".github/workflows").glob("pr-test.yml*"):
        file.write_text(file.read_text().replace("tiny-slime-test:latest", "tiny-slime-test:v1"))
    stale = lint("--baseline", str(baseline), repo=checkout, home=tmp_path)
    assert stale.returncode == 1
    assert "found no more" in stale.stdout
    assert lint("--baseline", str(baseline), "--shrink", repo=checkout, home=tmp_path).returncode == 0
    assert len(json.loads(baseline.read_text())["findings"]) == 1
    again = lint("--write-baseline", str(baseline), repo=checkout, home=tmp_path)
    assert (again.returncode, "only shrink" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--format", "xml"], "text, json, sarif, github"),
        (["--shrink"], "--shrink needs --baseline"),
        (["--baseline", "none.json"], "--write-baseline"),
        (["--baseline", "a", "--write-baseline", "b"], "exclude each other"),
    ],
)
def test_bad_flags_name_the_valid_ones(words: list[str], hint: str, checkout: Path, tmp_path: Path) -> None:
    said = lint(*words, repo=checkout, home=tmp_path)
    assert said.returncode == 2
    assert hint in said.stderr
