"""A bisection as a person would do it: a real history, real runs, one host and two, ^C and the way back."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import until
from tests.published import check_events
from tests.trials.given import workflow

TEST = "value = 42\nassert value == 42, 'the answer is wrong'\nprint('step 1: ok')\n"
HOSTS = """
hosts:
  one: {kind: local, runtime: none, gpus: 8, simulate: true}
  two: {kind: local, runtime: none, gpus: 8, simulate: true}
"""
COUNT, CULPRIT, NO_ROW = 8, 6, 4
BISECT = ("bisect", "quick", "--only", "quick", "--good", "c0", "--bad", f"c{COUNT}")


@pytest.fixture
def bisecting(person: Any, tmp_path: Path) -> Any:
    """With a history over the sample, each commit with its tag: c0, c1 and so on. A row breaks in CULPRIT, and its
    label is not there in NO_ROW."""
    person.write_hosts(HOSTS)
    person.git("config", "user.name", "somebody")
    person.git("config", "user.email", "somebody@example.com")
    for number in range(COUNT + 1):
        test = TEST.replace("value = 42", "value = 41") if number >= CULPRIT else TEST
        person.write("tests/test_quick.py", test)
        text = workflow("test_quick.py")
        person.write(".github/workflows/pr-test.yml", text.replace("-quick:", "-slow:") if number == NO_ROW else text)
        person.write("notes", str(number))
        person.git("add", "--all")
        person.git("commit", "--quiet", f"--message=change {number}")
        person.git("tag", f"c{number}")
    return person


def journal(person: Any) -> list[dict[str, Any]]:
    """The outcomes that the journal has."""
    (path,) = (person.home / "trials").glob("bisect-*.jsonl")
    _, *outcomes = map(json.loads, path.read_text().splitlines())
    return outcomes


def test_ctrl_c_ends_a_run_and_the_same_command_finds_the_culprit(bisecting: Any) -> None:
    before = bisecting.git("status", "--porcelain"), bisecting.git("rev-parse", "HEAD")
    begun = bisecting.start(*BISECT, "--host", "one")
    lines: list[str] = []
    while sum(": passed [" in line or ": failed: " in line for line in lines) < 4:
        lines.append(begun.stdout.readline())
        assert lines[-1], lines
    until(lambda: len(bisecting.processes()) > 1, "the next run")
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 130, out + err
    assert "the same command continues from here" in out
    assert not bisecting.processes()
    kept = journal(bisecting)
    assert {observation["host"] for observation in kept} == {"one"}
    assert len(kept) >= 4

    events_file = bisecting.home.with_name("events.jsonl")
    result = bisecting.ci_tasks(*BISECT, "--host", "two", "--events", str(events_file))
    assert (result.code, result.err) == (0, ""), result.out
    said = sum(one["status"] != "cancelled" for one in kept)
    assert f"continuing after {said} runs so far" in result.out
    sha = bisecting.git("rev-parse", f"c{CULPRIT}").strip()
    assert f"the culprit: {sha}\n    change {CULPRIT}\n    somebody <somebody@example.com>, " in result.out
    assert "missing: unknown label 'quick'" in out + result.out
    assert (bisecting.git("status", "--porcelain"), bisecting.git("rev-parse", "HEAD")) == before
    every = journal(bisecting)
    assert every[: len(kept)] == kept
    assert all(one["run"] or one["status"] == "missing" for one in every)
    events = check_events(events_file.read_text())
    assert sum(event["event"] == "row_ended" for event in events) == sum(bool(one["run"]) for one in every[len(kept) :])
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("command_ended", 0)

    again = bisecting.ci_tasks(*BISECT, "--host", "two", "--json")
    assert again.err.splitlines()[-6:] == result.out.splitlines()[-6:]
    assert (again.code, again.json["result"], again.json["candidates"][0]["commit"]) == (0, "found", sha)
    assert journal(bisecting) == every, "nothing ran again"
