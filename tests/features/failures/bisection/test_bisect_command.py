"""A bisection as a person would do it: a real history, real runs, one host and two, ^C and the way back."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import until
from tests.published import check_events

WORKFLOW = """
on: {pull_request: {types: [labeled]}}
jobs:
  e2e-test-quick:
    runs-on: [self-hosted, cpu]
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
COUNT, CULPRIT, NO_ROW, OTHER = 12, 9, 6, 7
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
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def test_the_culprit_is_found_past_untestable_commits_and_the_same_command_resumes(
    bisecting: Any,
) -> None:
    before = bisecting.git("status", "--porcelain"), bisecting.git("rev-parse", "HEAD")
    result = bisecting.ci_tasks(*BISECT, "--host", "one")
    assert (result.code, result.err) == (0, ""), result.out
    sha = bisecting.git("rev-parse", f"c{CULPRIT}").strip()
    assert f"the culprit: {sha}\n    change {CULPRIT}\n    somebody <somebody@example.com>, " in result.out
    assert "bad: fails as the bad end does (1 of 1 run)" in result.out
    assert "skip: unknown label 'quick'" in result.out
    assert "skip: another failure: " in result.out
    assert "good: 1 pass; with the culprit in it that would happen in" in result.out
    assert "looking for: AssertionError" in result.out
    assert (bisecting.git("status", "--porcelain"), bisecting.git("rev-parse", "HEAD")) == before

    kept = state(bisecting)["observations"]
    assert [observation["kind"] for observation in kept[:4]] == ["fail", "fail", "fail", "pass"]
    assert all(
        observation["host"] == "one"
        and observation["mark"]
        and (observation["run"] or observation["kind"] == "missing")
        for observation in kept
    )
    again = bisecting.ci_tasks(*BISECT, "--host", "two", "--json")
    assert again.code == 0
    assert again.err.splitlines()[-7:] == result.out.splitlines()[-7:]
    assert (again.json["result"], again.json["candidates"][0]["commit"]) == ("found", sha)
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
    assert {observation["host"] for observation in kept} == {"one", "two"}
    assert len(kept) >= 4

    result = bisecting.ci_tasks(*BISECT, "--host", "two,one", "--resume", "--events", "events.jsonl")
    assert result.code == 0, result.out + result.err
    assert f"going on after {len(kept)} runs of before" in result.out
    assert bisecting.git("rev-parse", f"c{CULPRIT}").strip() in result.out
    assert state(bisecting)["observations"][: len(kept)] == kept
    events = check_events((bisecting.checkout / "events.jsonl").read_text())
    runs = len(state(bisecting)["observations"]) - len(kept)
    assert sum(event["event"] == "row_ended" for event in events) == runs
    assert any("the culprit: " in event["text"] for event in events if event["event"] == "message")
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("command_ended", 0)


def test_a_host_that_can_run_nothing_ends_it_as_blocked(bisecting: Any) -> None:
    bisecting.write(".github/workflows/pr-test.yml", WORKFLOW.replace("GPUS", "2"))
    bisecting.git("commit", "--quiet", "--all", "--message=two GPUs")
    result = bisecting.ci_tasks("bisect", "quick", "--only", "quick", "--good", "c0", "--host", "bare")
    assert result.code == 125
    assert result.out.count("skip: blocked: bare lacks 2 GPUs") == 2
    assert "no host can run row quick" in result.err
    assert "ci-tasks doctor" in result.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--good", "c0", "--bad", "c3", "--resume"), "there is nothing to resume"),
        (("--good", "c3", "--bad", "c0"), "are they swapped?"),
        (("--bad", "c3"), "bisect needs --good REV"),
        (("--good", "c0", "--repeat", "often"), "--repeat takes a number of repetitions"),
    ],
)
def test_what_cannot_be_bisected_is_bad_input(bisecting: Any, argv: tuple[str, ...], message: str) -> None:
    result = bisecting.ci_tasks("bisect", "quick", "--only", "quick", "--host", "one", *argv)
    assert result.code == 2, result.out + result.err
    assert message in result.err


def test_a_host_that_nobody_knows_is_bad_input(bisecting: Any) -> None:
    result = bisecting.ci_tasks("bisect", "quick", "--only", "quick", "--good", "c0", "--host", "one,nowhere")
    assert result.code == 2, result.out + result.err
    assert "nowhere" in result.err


def test_a_part_of_a_name_has_to_match_one_row(person: Any) -> None:
    result = person.ci_tasks("bisect", "ckpt", "--only", "tiny_ckpt", "--good", "HEAD~1")
    assert result.code == 2
    assert "--only 'tiny_ckpt' means 5" in result.err
    assert "tiny_ckpt[async-save]" in result.err
