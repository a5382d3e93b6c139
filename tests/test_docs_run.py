"""What the pages and the commands' help show works: each call that needs nothing but the sample is made, in a checkout
of the sample where one row has run. The others are left out by rule, each with the reason."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_tasks.cli import program
from tests.parts.documents import EXAMPLES

# What a call has → why it is not made here.
LEFT_OUT = {
    r"^(run|remote|setup|reproduce|compare|bisect|verl|retry)\b": "runs rows, for seconds to hours: tests/integration",
    r"^hang\b": "a row that is running: tests/integration",
    r"^diff\b": "two runs of a row: tests/features/difference",
    r"^nox\b": "a process that runs rows or builds: tests/integration",
    r"^shell\b": "an interactive shell",
    r"--record": "needs a sandbox: tests/features/recorder",
    r"^mcp\b": "serves until its input ends: tests/features/mcp",
    r"\b(h100\w?|cluster|H)\b": "another host",
    r"\b(RUN|LABEL|2026\d{4}-\d{6}\S*)\b": "a name that stands for one of the reader's",
    r"OWNER/REPO": "GitHub's API",
    r"verl-e2e-weekly": "a workflow of Megatron-Bridge: tests/features/bridge",
    r"--rev v0\.2\.2|setup\.tag=nightly|moonlight|~/other": "a tag, a job or a row that the sample does not have",
}
# A host may lack what doctor checks, and the sample has mistakes for lint to find.
EXIT_CODES = {"doctor": {0, 125}, "lint": {0, 1}, "runs": {0, 2}}  # 2: a label that never ran
LOG = "Traceback (most recent call last):\nAssertionError: the loss is 2.0\n##[error]exit code 1\n"

# Calls of `invoke` and `ci-tasks` are the same; the former are made by the same program.
CALLS = sorted({shlex.join(call if call[0] == "nox" else call[1:]) for _, call in EXAMPLES})


def why_left_out(call: str) -> str | None:
    return next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, call)), None)


def run(call: str) -> int:
    words = [os.path.expanduser(word) for word in shlex.split(call)]
    return program.run(["ci-tasks", *words])


@pytest.fixture(scope="module")
def checkout(sample_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`~/slime` is the sample; a row of it has run, and a log of CI lies in it. `~/sglang` is another package."""
    person = tmp_path_factory.mktemp("person")
    (person / "sglang/sglang").mkdir(parents=True)
    (person / "sglang/sglang/__init__.py").touch()
    subprocess.run(["git", "init", "--quiet", str(person / "sglang")], check=True)
    path = shutil.copytree(sample_repository, person / "slime")
    (path / "failed.log").write_text(LOG)
    (path / "yesterday.log").write_text("1 passed\n")
    (path / "hosts.yaml").write_text("overrides: []\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(person))
        patch.setenv("XDG_CONFIG_HOME", str(person / ".config"))
        patch.setenv("CI_TASKS_HOME", str(person / "home"))
        for name in ("CI_TASKS_REPO", "CI_TASKS_HOSTS"):
            patch.delenv(name, raising=False)
        patch.chdir(path)
        assert run("remote --host sim precision") == 0
        yield path


@pytest.mark.parametrize("call", [call for call in CALLS if why_left_out(call) is None])
def test_a_call_that_the_documents_show_works(
    call: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = call.split()[0]
    with (checkout / "failed.log").open() as log:
        monkeypatch.setattr("sys.stdin", log)
        assert run(call.replace("/tmp/", shlex.quote(f"{tmp_path}/"))) in EXIT_CODES.get(command, {0})


def test_every_reason_leaves_something_out() -> None:
    """And what remains is most of the commands that run no rows."""
    assert not [pattern for pattern in LEFT_OUT if not any(re.search(pattern, call) for call in CALLS)]
    made = {call.split()[0] for call in CALLS if why_left_out(call) is None}
    assert made >= {"jobs", "plan", "runs", "logs", "attach", "fetch", "cancel", "report", "triage", "hosts", "clean"}
    assert made >= {"lint", "coverage", "prefetch", "doctor", "--list", "--version"}
