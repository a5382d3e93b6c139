"""`setup` as a newcomer runs it, with the real pip: CI's index is not reached from here, pip's own is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.setup.setup import SetupOptions, _agrees, cpu_labels, set_up
from ci_tasks.run.checkout_source import open_source
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.workflow.context import UnknownValueError
from tests.parts.git import repository
from tests.parts.processes import files_named

UNREACHED = "pip install pytest --index-url http://127.0.0.1:9/simple"
OVERRIDE = '{job: "cpu-unittest", step: "Install dependencies", pip_index: "default"}'


@pytest.fixture
def newcomer(person: Any, tmp_path: Path, index: dict[str, str]) -> Any:
    person.use_index(index)
    person.edit(".github/workflows/pr-test.yml", "pip install pytest", UNREACHED)
    person.write("tests/test_rewards.py", "def test_a(): ...\n")  # the first row, which runs nothing
    person.env.update(XDG_CONFIG_HOME=str(tmp_path / "config"), PIP_RETRIES="0")
    person.file = tmp_path / "config/ci-tasks/hosts.yaml"
    return person


@pytest.mark.timeout(300)
def test_setup_runs_rows_and_writes_the_override_that_they_needed(newcomer: Any) -> None:
    before = newcomer.git("status", "--porcelain")
    done = newcomer.ci_tasks("setup", "--rows", "1", "--yes", "--json")
    assert done.code == 0, done.err
    assert [(row["row"], row["status"]) for row in done.json["rows"]] == [("metrics", "passed")]
    assert done.json["overrides"] == [OVERRIDE, OVERRIDE.replace("cpu-unittest", "agent-test")]
    assert done.json["written"] and done.json["file"] == str(newcomer.file)
    assert f"  - {OVERRIDE}\n" in newcomer.file.read_text() and "next: `ci-tasks run cpu-unittest`" in done.err
    assert newcomer.git("status", "--porcelain") == before, "nothing is written into the checkout"
    planned = newcomer.ci_tasks("plan", "cpu-unittest", "--only", "metrics")
    assert f"override in {newcomer.file}" in planned.out


@pytest.mark.timeout(300)
def test_where_no_index_has_it_the_rows_are_blocked_and_nothing_is_written(newcomer: Any) -> None:
    newcomer.env.update(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS="")
    done = newcomer.ci_tasks("setup", "--rows", "1", "--yes")
    assert done.code == 125
    assert done.out.count("install steps: running") == 2, "the second try showed that no more can help"
    assert "next try, 4 to 9 GB on disk" in done.out and "nothing was written" in done.out
    assert not newcomer.file.exists()


def test_without_a_terminal_and_yes_nothing_is_installed(newcomer: Any) -> None:
    refused = newcomer.ci_tasks("setup", "--rows", "1")
    assert refused.code == 2
    assert re.search(r"^label cpu-unittest: \d+ rows without GPUs\n  Python: 3", refused.out, re.MULTILINE)
    assert "CI's install steps of cpu-unittest run here: about 1 GB on disk and 1 to 5 minutes" in refused.out
    assert "without a terminal, setup needs --yes" in refused.err
    assert not newcomer.file.exists() and not files_named("log", newcomer.home)


@pytest.mark.parametrize(("terminals", "answers"), [([0], []), ([1], []), ([0, 1], ["", "y", "no"])])
def test_only_a_person_at_a_terminal_is_asked(
    terminals: list[int], answers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.isatty", terminals.__contains__)
    monkeypatch.setattr("builtins.input", lambda _: answers.pop(0))
    if answers:
        assert [_agrees(SetupOptions()) for _ in range(3)] == [True, True, False]
    with pytest.raises(UsageError, match="setup needs --yes"):
        _agrees(SetupOptions(json=bool(terminals[1:])))


def test_a_label_is_tried_here_if_it_installs_something_and_needs_no_gpu_and_no_container(tmp_path: Path) -> None:
    jobs = {"cpu": "runs-on: ubuntu-latest", "gpus": "runs-on: 8-gpu-h200"}
    jobs |= {"boxed": f"{jobs['cpu']}, container: {{image: 'a/b:1'}}", "after": f"{jobs['cpu']}, needs: [cpu, gpus]"}
    lines = [f"  {name}: {{{words}, steps: [{{run: pip install x}}]}}" for name, words in jobs.items()]
    lines.append("  bare: {runs-on: ubuntu-latest, steps: [{run: pytest}]}")
    workflow = "on: push\njobs:\n" + "\n".join(lines)
    source = open_source(str(repository(tmp_path, {".github/workflows/ci.yml": workflow})))
    by_label = {row.label: [row] * (1 + len(row.label)) for row in list_jobs(source)}
    assert cpu_labels(source, by_label) == ["cpu", "after"]


def test_a_label_that_needs_values_points_to_other_labels(tmp_path: Path) -> None:
    python = "{uses: actions/setup-python@v5, with: {python-version: '${{ vars.PYTHON }}'}}"
    workflow = f"on: push\njobs:\n  a: {{runs-on: ubuntu-latest, steps: [{python}, {{run: pip install x}}]}}\n"
    repository(tmp_path, {".github/workflows/ci.yml": workflow})
    with pytest.raises(UnknownValueError) as caught:
        set_up(SetupOptions(repo=str(tmp_path), yes=True))
    assert caught.value.hint == "`ci-tasks run a` takes them: give --var PYTHON=VALUE; or --label: a"
