"""CI's commit that is nobody's any more, and what of a job is a deviation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci_tasks.agent.records import Checkout, Deviation
from ci_tasks.config import read
from ci_tasks.errors import CheckoutError
from ci_tasks.given_values import NOTHING_GIVEN
from ci_tasks.hosts.executor import take_host_snapshot
from ci_tasks.logs.job_facts import RecoveredJob, RecoveredStep
from ci_tasks.logs.job_log import AnalysedLog
from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.records import RunEnvironment, RunRecord, Triage
from ci_tasks.trials.options import ReproduceOptions
from ci_tasks.trials.reproduce import CiJob, address, find_job, reproduce, with_job_deviations
from ci_tasks.trials.rules import DIFFERENT_FAILURE, REPRODUCED, SAME_KIND
from ci_tasks.trials.same_failure import Comparison, compare
from tests.parts.git import git, repository
from tests.trials.given import workflow

CONFIG = read("hosts: {local: {kind: local}}", "hosts.yaml")


@pytest.fixture
def clone(tmp_path: Path, home: Path) -> Path:
    """With a branch of main and one of a pull request. Its origin cannot be reached."""
    path = repository(tmp_path / "clone", {".github/workflows/pr-test.yml": workflow("a.py"), "a": "1\n", "b": "1\n"})
    git(path, "config", "remote.origin.url", str(tmp_path / "gone"))
    git(path, "checkout", "-q", "-b", "head")
    (path / "a").write_text("of the pull request\n")
    git(path, "commit", "-qam", "head")
    git(path, "checkout", "-q", "-b", "base", "main")
    (path / "b").write_text("of main\n")
    git(path, "commit", "-qam", "base")
    return path


def found(clone: Path, head: str = "head") -> CiJob:
    parents = [git(clone, "rev-parse", rev) for rev in (head, "base")]
    merge = {"commit": "1" * 40, "merge_head": parents[0], "merge_base": parents[1]}
    recovered = RecoveredJob(repository="o/r", job_name="e2e-test-quick (a.py, 0)", **merge)  # type: ignore[arg-type]
    return find_job(recovered, ReproduceOptions(log="-", repo=str(clone)), NOTHING_GIVEN)


def test_a_merge_that_is_gone_is_made_again_from_its_parents_beside_the_checkout(clone: Path, capsys: Any) -> None:
    before = git(clone, "count-objects", "-v")
    job, again = found(clone), found(clone)
    merging = f"commit {'1' * 12} is gone: merging {git(clone, 'rev-parse', 'head')[:12]} into "
    assert capsys.readouterr().out.count(merging) == 2
    assert (job.is_merged_here, job.row.row, job.commit) == (True, "a", again.commit)
    files = [git(job.source.path, "show", f"{job.commit}:{name}") for name in ("a", "b")]
    assert files == ["of the pull request", "of main"]
    assert git(clone, "count-objects", "-v") == before
    record = RunRecord("", "quick", "a", "h", "failed", checkout=Checkout("/c", job.commit, head=job.commit))
    record = with_job_deviations(record, job)
    assert [(item.what, item.ci) for item in record.deviations] == [("code", f"merge commit {'1' * 12}")]


@pytest.mark.parametrize("repeat", [None, 2])
def test_runs_that_repeat_are_of_one_tree_and_where_nothing_ran_there_is_no_verdict(
    clone: Path, repeat: int | None, capsys: Any
) -> None:
    takes: list[Any] = []
    job = RecoveredJob(job_name="e2e-test-quick (a.py, 0)", commit=git(clone, "rev-parse", "HEAD"))
    log = AnalysedLog("x", job, Triage("x", "failed", 1, "line", "kl#1", 0.9))
    options = ReproduceOptions(log="-", repo=str(clone), host="local", repeat=repeat)
    result = reproduce(log, CONFIG, options, execute=lambda *_, take_snapshot, view: takes.append(take_snapshot))
    assert (result.verdict, result.exit_code, len(takes)) == ("vacuous", 1, 1)
    assert (takes[0] is take_host_snapshot, "no verdict: nothing ran" in capsys.readouterr().out) == (not repeat, True)


def test_outputs_of_other_jobs_are_those_that_the_log_shows(clone: Path) -> None:
    build = "build: {runs-on: x, outputs: {tag: x}, steps: [{run: docker ps}]}"
    steps = "steps: [{run: 'bash tests.sh --tag ${{ needs.build.outputs.tag }}'}]"
    text = f"on: pull_request\njobs:\n  {build}\n  test: {{needs: build, runs-on: ubuntu-latest, {steps}}}\n"
    (clone / ".github/workflows/pr-test.yml").write_text(text)
    git(clone, "commit", "-qam", "build")
    step = RecoveredStep("Run", 1, script="bash tests.sh --tag v7")
    recovered = RecoveredJob(job_name="test", commit=git(clone, "rev-parse", "HEAD"), steps=(step,))
    for on_my_tree in (False, True):
        options = ReproduceOptions(log="-", repo=str(clone), on_my_tree=on_my_tree)
        given = find_job(recovered, options, NOTHING_GIVEN).source.given
        assert given.outputs == {"build": {"tag": "v7"}}
        assert given.sources == {"needs.build.outputs.tag": "CI's log"}


def test_a_commit_is_fetched_from_ci_s_repository_if_the_checkout_is_of_a_fork() -> None:
    for host in ("https://github.com/", "git@github.com:", "ssh://git@git.example.org/"):
        urls = [address(f"{host}{name}.git", "o/R") for name in ("me/r", "O/r", "me/other")]
        assert urls == [f"{host}o/R", f"{host}O/r.git", f"{host}me/other.git"]
    assert [address("/mirror/r", "o/r"), address("", "o/r")] == ["/mirror/r", "https://github.com/o/r"]


def test_parents_that_cannot_be_merged_are_an_error_that_offers_the_pull_requests_commit(clone: Path) -> None:
    git(clone, "checkout", "-q", "-b", "conflict", "main")
    (clone / "b").write_text("of another\n")
    git(clone, "commit", "-qam", "conflict")
    head = git(clone, "rev-parse", "conflict")
    with pytest.raises(CheckoutError, match="its parents cannot be merged here") as caught:
        found(clone, "conflict")
    assert f"--rev {head[:12]} runs the pull request's own commit" in caught.value.hint


def test_what_the_log_says_otherwise_is_a_deviation_and_a_secret_that_ci_lacked_is_none(clone: Path) -> None:
    job = found(clone)
    step = RecoveredStep("Run", 1, env={"HF_TOKEN": "", "WANDB_API_KEY": "***"})
    facts: dict[str, Any] = {"driver": "570.1", "gpu_models": ("NVIDIA H100",), "packages": {"torch": "2.8", "x": "1"}}
    ci = RecoveredJob(runner_name="ci-1", runner_image="ubuntu-24.04 1", python="3.10.1", steps=(step,), **facts)
    environment = RunEnvironment(python="3.12.3", driver="570.1", packages={"torch": "2.9"})
    secrets = Deviation("secrets", "HF_TOKEN, WANDB_API_KEY", "unset", "not in your environment")
    record = RunRecord("", "quick", "a", "box", "failed", environment=environment, deviations=(secrets,))
    seen = with_job_deviations(record, CiJob(job.source, ci, job.row, job.commit)).deviations
    assert [(item.what, item.ci, item.here) for item in seen] == [
        ("secrets", "WANDB_API_KEY", "unset"),
        ("runner", "ci-1", "box"),
        ("runner image", "ubuntu-24.04 1", "none"),
        ("Python", "3.10.1", "3.12.3"),
        ("GPU model", "NVIDIA H100", "none"),
        ("package torch", "2.8", "2.9"),
    ]


_FOLDER = Path(__file__).parent
_FILES = [
    yaml.safe_load((_FOLDER / name).read_text())
    for name in ("pairs.yaml", "more_pairs.yaml", "third_pairs.yaml", "fourth_pairs.yaml", "fifth_pairs.yaml")
]
PAIRS = {part: [pair for file in _FILES for pair in file[part]] for part in ("different", "same")}


def compared(pair: dict[str, Any]) -> Comparison:
    codes = pair.get("codes", [1, 1])
    ci, here = pair["ci"], pair["here"]
    if isinstance(here, dict):
        text = ci
        for old, new in here["replace"]:
            assert old in text, f"{old!r} is not in the log"
            text = text.replace(old, new)
        here = text
    return compare(*(triage([log.encode()], exit_code=code) for log, code in zip((ci, here), codes, strict=True)))


def _rows(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", PAIRS[name], ids=[pair["name"] for pair in PAIRS[name]])


@_rows("different")
def test_two_failures_that_look_alike_are_told_apart(pair: dict[str, Any]) -> None:
    got = compared(pair)
    assert got.outcome != REPRODUCED, got
    assert "kind" not in pair or got.outcome == pair["kind"], got
    assert got.differs or got.outcome == SAME_KIND


@_rows("same")
def test_one_failure_that_looks_different_is_recognized(pair: dict[str, Any]) -> None:
    got = compared(pair)
    assert got.outcome == REPRODUCED, got
    assert got.same and not got.differs


def test_a_record_of_an_earlier_version_has_a_signature_alone() -> None:
    old = Triage("x", "failed", 1, "line", "kl#1", 0.9)
    assert compare(old, old).outcome == SAME_KIND
    assert (
        compare(Triage("unknown", "failed", None, "", "", 0.0), replace(old, signature="")).outcome == DIFFERENT_FAILURE
    )
