"""Python, git, bash and the clock."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor import basics
from ci_tasks.features.doctor.check_results import CheckResult
from ci_tasks.hosts.queries import LocalQueryRunner

GOOD = {
    "python": QueryAnswer(0, "3.8.18\n"),
    "git": QueryAnswer(0, "git version 2.17.0\n"),
    "bash": QueryAnswer(0, "x 5.2.15(1)\n"),
}


def verdicts(results: list[CheckResult]) -> dict[str, str]:
    return {result.topic: result.status for result in results}


@pytest.mark.parametrize(
    ("program", "answer", "status"),
    [
        ("python", QueryAnswer(0, "3.8.0\n"), "ok"),
        ("python", QueryAnswer(0, "3.12.1\n"), "ok"),
        ("python", QueryAnswer(0, "3.7.17\n"), "fault"),
        # A Python that was built without what the runner needs, and pyenv's shim for a version that is not there.
        ("python", QueryAnswer(1, "3.11.2\n", "ModuleNotFoundError: No module named 'zlib'\n"), "fault"),
        ("python", QueryAnswer(127, "", "pyenv: python3: command not found\n"), "fault"),
        ("python", QueryAnswer(None, "", "python3: No such file or directory"), "fault"),
        ("git", QueryAnswer(0, "git version 2.39.3 (Apple Git-146)\n"), "ok"),
        ("git", QueryAnswer(0, "git version 2.16.6\n"), "fault"),
        ("git", QueryAnswer(None, "", "git: No such file or directory"), "fault"),
        ("bash", QueryAnswer(0, "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\nmore\n"), "ok"),
        ("bash", QueryAnswer(None, "", "bash: No such file or directory"), "fault"),
    ],
)
def test_programs_are_there_and_new_enough(read: Any, program: str, answer: QueryAnswer, status: str) -> None:
    results = read(basics.facts(), {**GOOD, program: answer})
    topic = {"python": "Python"}.get(program, program)
    assert verdicts(results) == {"Python": "ok", "git": "ok", "bash": "ok", topic: status}
    assert all(result.next_step for result in results if result.status == "fault")


def test_missing_parts_of_python_are_reported(read: Any) -> None:
    lacking = QueryAnswer(1, "3.11.2\n", "ModuleNotFoundError: No module named 'zlib'\n")
    assert "zlib" in read(basics.facts(), {**GOOD, "python": lacking})[0].text


@pytest.mark.parametrize(
    ("there", "status", "text"),
    [
        # Asked at 1000, answered at 1010: between the two nobody can tell.
        (1000.0, "ok", "within 10.0 s"),
        (1010.0, "ok", "within 10.0 s"),
        (998.0, "ok", "within"),
        (997.0, "warning", "3 s behind"),
        (1100.0, "warning", "2 min ahead"),
        (699.0, "fault", "5 min behind"),
        (1010.0 + 7200, "fault", "2 h ahead"),
    ],
)
def test_clocks_are_compared_as_far_as_the_answer_allows(there: float, status: str, text: str) -> None:
    [result] = basics.read_clock(QueryAnswer(0, f"{there!r}\n"), 1000.0, 1010.0)
    assert (result.status, text in result.text) == (status, True)


def test_a_clock_that_does_not_answer_is_unknown() -> None:
    [result] = basics.read_clock(QueryAnswer(None, "", "no answer from python3 within 20 s"), 0, 20)
    assert (result.status, result.text) == ("unknown", "no answer from python3 within 20 s")


def test_this_machine_has_what_its_tests_run_with(read: Any) -> None:
    facts = basics.facts()
    answers = LocalQueryRunner().run_queries({name: argv for fact in facts for name, argv in fact.queries.items()}, 60)
    assert set(verdicts(read(facts, answers)).values()) == {"ok"}
