"""A bisection as a person would do it: a real history, real runs, one host and two, ^C and the way back."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

until = sys.modules["ci_tasks_tests_conftest"].until

WORKFLOW = """
on: {pull_request: {types: [labeled]}}
jobs:
  e2e-test-quick:
    runs-on: self-hosted
    timeout-minutes: 5
    strategy: {matrix: {info: [{test_file: test_quick.py, num_gpus: GPUS}]}}
    steps:
      - uses: actions/checkout@v4
      - run: python3 tests/${{ matrix.info.test_file }}
"""
TEST = """
def check():
    value = 42
    assert value == 42, "the answer is wrong"
    print("step 1: ok")

if __name__ == "__main__":
    check()
"""
HOSTS = """
hosts:
  one: {kind: local, runtime: none, gpus: 8, simulate: true}
  two: {kind: local, runtime: none, gpus: 8, simulate: true}
  bare: {kind: local, runtime: none, gpus: 0}
"""
COUNT, CULPRIT, NO_ROW, OTHER = 12, 9, 6, 3
BISECT = ("bisect", "quick", "--only", "quick", "--good", "c0", "--bad", f"c{COUNT}")


@pytest.fixture
def bisecting(person: Any, tmp_path: Path) -> Any:
    """With a history over the sample, each commit with its tag: c0, c1 and so on. A row breaks in CULPRIT, its label is
    not there in NO_ROW, and it is broken in another way in OTHER."""
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    person.env["CI_TASKS_HOSTS"] = str(tmp_path / "hosts.yaml")
    person.git("config", "user.name", "somebody")
    person.git("config", "user.email", "somebody@example.com")
    for number in range(COUNT + 1):
        test = TEST.replace("value = 42", "value = 41") if number >= CULPRIT else TEST
        person.write(
            "tests/test_quick.py", test.replace("value = 42", "raise KeyError('value')") if number == OTHER else test
        )
        workflow = WORKFLOW.replace("GPUS", "0")
        workflow = workflow.replace("quick:", "slow:") if number == NO_ROW else workflow
        person.write(".github/workflows/pr-test.yml", workflow)
        person.write("notes", str(number))
        person.git("add", "--all")
        person.git("commit", "--quiet", f"--message=change {number}")
        person.git("tag", f"c{number}")
    return person


def state(person: Any) -> dict[str, Any]:
    (path,) = (person.home / "bisections").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_culprit_is_found_past_commits_that_cannot_be_tested_and_the_same_words_know_it_again(
    bisecting: Any,
) -> None:
    before = bisecting.git("status", "--porcelain"), bisecting.git("rev-parse", "HEAD")
    said = bisecting.ci_tasks(*BISECT, "--host", "one")
    assert (said.code, said.err) == (0, ""), said.out
    sha = bisecting.git("rev-parse", f"c{CULPRIT}").strip()
    assert f"the culprit: {sha}\n    change {CULPRIT}\n    somebody <somebody@example.com>, " in said.out
    assert "bad: fails as the bad end does (1 of 1 run)" in said.out
    assert "skip: no label 'quick'" in said.out
    assert "skip: another failure: " in said.out
    assert "good: 1 pass; with the culprit in it that would happen in" in said.out
    assert "looking for: AssertionError" in said.out
    assert (bisecting.git("status", "--porcelain"), bisecting.git("rev-parse", "HEAD")) == before

    kept = state(bisecting)["observations"]
    assert [one["kind"] for one in kept[:4]] == ["fail", "fail", "fail", "pass"]
    assert all(one["host"] == "one" and one["mark"] and (one["run"] or one["kind"] == "missing") for one in kept)
    again = bisecting.ci_tasks(*BISECT, "--host", "two")
    assert again.code == 0
    assert again.out.splitlines()[-7:] == said.out.splitlines()[-7:]
    assert state(bisecting)["observations"] == kept, "nothing ran again"


def test_two_hosts_run_at_once_and_a_ctrl_c_ends_both_and_loses_nothing(bisecting: Any) -> None:
    begun = bisecting.start(*BISECT, "--host", "one,two")
    lines: list[str] = []
    while not lines or "looking for" not in lines[-1]:
        lines.append(begun.stdout.readline())
        assert lines[-1], lines
    until(lambda: len(bisecting.processes()) > 1, "runs of the next round")
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 130, out + err
    assert "the same command goes on from here" in out
    assert not bisecting.processes()
    kept = state(bisecting)["observations"]
    assert {one["host"] for one in kept} == {"one", "two"}
    assert len(kept) >= 4

    said = bisecting.ci_tasks(*BISECT, "--host", "two,one", "--resume")
    assert said.code == 0, said.out + said.err
    assert f"going on after {len(kept)} runs of before" in said.out
    assert bisecting.git("rev-parse", f"c{CULPRIT}").strip() in said.out
    assert state(bisecting)["observations"][: len(kept)] == kept


def test_a_host_that_can_run_nothing_ends_it_as_blocked(bisecting: Any) -> None:
    bisecting.write(".github/workflows/pr-test.yml", WORKFLOW.replace("GPUS", "2"))
    bisecting.git("commit", "--quiet", "--all", "--message=two GPUs")
    said = bisecting.ci_tasks("bisect", "quick", "--only", "quick", "--good", "c0", "--host", "bare")
    assert said.code == 125
    assert said.out.count("skip: blocked: bare lacks 2 GPUs") == 2
    assert "no host can run row quick" in said.err
    assert "ci-tasks doctor" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--good", "c0", "--bad", "c3", "--resume"), "there is nothing to resume"),
        (("--good", "c3", "--bad", "c0"), "are they swapped?"),
        (("--bad", "c3"), "bisect needs --good REV"),
        (("--good", "c0", "--repeat", "often"), "--repeat is a number of runs"),
    ],
)
def test_what_cannot_be_bisected_is_bad_input(bisecting: Any, words: tuple[str, ...], message: str) -> None:
    said = bisecting.ci_tasks("bisect", "quick", "--only", "quick", "--host", "one", *words)
    assert said.code == 2, said.out + said.err
    assert message in said.err


def test_a_host_that_nobody_knows_is_bad_input(bisecting: Any) -> None:
    said = bisecting.ci_tasks("bisect", "quick", "--only", "quick", "--good", "c0", "--host", "one,nowhere")
    assert said.code == 2, said.out + said.err
    assert "nowhere" in said.err


def test_a_part_of_a_name_has_to_mean_one_row(person: Any) -> None:
    said = person.ci_tasks("bisect", "ckpt", "--only", "tiny_ckpt", "--good", "HEAD~1")
    assert said.code == 2
    assert "--only 'tiny_ckpt' means 5" in said.err
    assert "tiny_ckpt[async-save]" in said.err
