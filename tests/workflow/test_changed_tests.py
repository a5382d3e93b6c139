"""The rule for changed tests is read from a script as bash, git and grep would carry it out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci_tasks.workflow.changed_tests import changed_jobs, read_rule
from ci_tasks.workflow.reader import read
from tests.parts.cases import named

SAMPLE = Path(__file__).resolve().parents[2] / "examples/tiny-slime/.github/workflows/pr-test.yml"
DIFF = "git diff --name-only --diff-filter=AM origin/main...HEAD -- 'tests/test_*.py' \"tests/more/test_*.py\""
LOOP = "for file in $(%s || true); do\n  %s\n  echo $file ${GPUS:-8}\ndone\n"
PIPED = "GPUS=$(grep -oP '^NUM_GPUS\\s*=\\s*\\K\\d+' $file | head -1)"


def test_pathspecs_and_statuses_are_those_of_git_diff() -> None:
    rule = read_rule(LOOP % (DIFF, PIPED), "bash")
    assert rule is not None
    assert (rule.pathspecs, rule.statuses) == (("tests/test_*.py", "tests/more/test_*.py"), "AM")


WITHOUT_RULE = [
    "git status",
    "git diff --stat -- tests",
    "git diff --name-only origin/main",
    "git diff --name-only -- $PATTERNS",
    "# git diff --name-only -- tests",
]


@pytest.mark.parametrize("script", WITHOUT_RULE)
def test_a_script_without_fixed_pathspecs_gives_no_rule(script: str) -> None:
    assert read_rule(script, "bash") is None


GREPS = {
    "piped": PIPED,
    "alone": "GPUS=$(grep -m1 -oP '^NUM_GPUS = \\K\\d+' $file)",
    "guarded": f"{PIPED} || true",
    "guarded inside": "GPUS=$(grep -m1 -oE '^NUM_GPUS *= *[0-9]+' $file | grep -oE '[0-9]+$' || echo 8)",
    "set": f"set +e; {PIPED}",
    "a class": "GPUS=$(grep -oE '^NUM_GPUS[[:space:]]*=[[:space:]]*[[:digit:]]+' $file | head -1 | grep -oE '[0-9]+')",
}


@pytest.mark.parametrize("shell", ["bash", None])
@named("grep", GREPS)
@pytest.mark.parametrize("text", ["NUM_GPUS = 4\nNUM_GPUS = 2\n", "x = 1\n"], ids=["with", "without"])
def test_what_a_file_gets_is_what_bash_gives_it(text: str, grep: str, shell: str | None, tmp_path: Path) -> None:
    """The script itself is the judge, run as GitHub would."""
    (tmp_path / "a.py").write_text(text)
    script = LOOP % ("echo a.py", grep)
    flags = ["--noprofile", "--norc", "-eo", "pipefail"] if shell == "bash" else ["-e"]
    done = subprocess.run(["bash", *flags, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    rule = read_rule(LOOP % (DIFF, grep), shell)
    assert rule is not None
    if done.returncode:
        assert rule.fails_without and rule.number_in(text) is None
    else:
        assert rule.gpus_of(text) == int(done.stdout.split()[1])


def test_a_grep_whose_pattern_is_not_known_gives_no_gpus() -> None:
    rule = read_rule(LOOP % (DIFF, "GPUS=$(grep -oP '^NUM_GPUS(' $file)"), "bash")
    assert rule is not None and rule.gpus_line is None


def test_the_job_for_changed_tests_is_the_one_whose_matrix_such_a_script_gives() -> None:
    (job,) = changed_jobs(read(SAMPLE.read_text(encoding="utf-8"), "pr-test.yml"))
    assert (job.job, job.name) == ("e2e-test-changed", "run-ci-changed")
    assert job.rule.pathspecs == ("tests/test_*.py", "tests/plugin_contracts/test_*.py")
    assert (job.rule.default_gpus, job.rule.fails_without) == (8, False)
