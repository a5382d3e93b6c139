"""A comparison as a person makes it: real trees, real runs, a real host over SSH."""

from __future__ import annotations

from typing import Any

import pytest

from tests.published import check, check_events
from tests.trials.given import workflow

TEST = "print('step 1: ok')\n"


@pytest.fixture
def changed(person: Any, sshd: Any) -> Any:
    """With a row that passes on main, and fails with an edit that is not committed."""
    sshd.start("box")
    person.write_hosts("hosts: {box: {kind: ssh, address: box, runtime: none, gpus: 0}}\n")
    person.env.update(sshd.env)
    person.write(".github/workflows/pr-test.yml", workflow("test_quick.py"))
    person.write("tests/test_quick.py", TEST)
    person.git("add", "--all")
    person.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=quick")
    person.git("update-ref", "refs/remotes/origin/main", "HEAD")
    person.write("tests/test_quick.py", f"{TEST}raise ValueError('the edit')\n")
    return person


def test_a_failure_of_an_edit_is_yours_and_the_next_call_uses_its_runs(changed: Any) -> None:
    compare = ("compare", "quick", "--only", "quick", "--host", "box", "--json")
    events_file = changed.home.with_name("events.jsonl")
    first = changed.ci_tasks(*compare, "--events", str(events_file))
    assert first.code == 1, first.out + first.err
    result = check("compare", first.json)
    (row,) = result["rows"]
    assert (result["verdict"], row["yours"]["failed"], row["base"]["failed"]) == ("yours", 3, 0)
    assert "(merge base of HEAD and origin/main)" in first.err
    events = check_events(events_file.read_text())
    assert sum(event["event"] == "row_ended" for event in events) == 6
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("command_ended", 1)

    again = changed.ci_tasks(*compare)
    (row,) = again.json["rows"]
    assert (again.code, again.json["verdict"]) == (1, "yours")
    assert row["base"]["run_ids"] == result["rows"][0]["base"]["run_ids"], "the base did not run again"
    assert not changed.processes()
