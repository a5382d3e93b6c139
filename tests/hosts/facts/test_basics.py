"""Python, git, bash and the clock."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.hosts.ask import Answer, LocalAsker
from ci_tasks.hosts.facts import basics
from ci_tasks.report.doctor import Finding

GOOD = {"python": Answer(0, "3.8.18\n"), "git": Answer(0, "git version 2.17.0\n"), "bash": Answer(0, "x 5.2.15(1)\n")}


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.topic: finding.status for finding in findings}


@pytest.mark.parametrize(
    ("program", "answer", "status"),
    [
        ("python", Answer(0, "3.8.0\n"), "ok"),
        ("python", Answer(0, "3.12.1\n"), "ok"),
        ("python", Answer(0, "3.7.17\n"), "fault"),
        # A Python that was built without what the runner needs, and pyenv's shim for a version that is not there.
        ("python", Answer(1, "3.11.2\n", "ModuleNotFoundError: No module named 'zlib'\n"), "fault"),
        ("python", Answer(127, "", "pyenv: python3: command not found\n"), "fault"),
        ("python", Answer(None, "", "python3: No such file or directory"), "fault"),
        ("git", Answer(0, "git version 2.39.3 (Apple Git-146)\n"), "ok"),
        ("git", Answer(0, "git version 2.16.6\n"), "fault"),
        ("git", Answer(None, "", "git: No such file or directory"), "fault"),
        ("bash", Answer(0, "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\nmore\n"), "ok"),
        ("bash", Answer(None, "", "bash: No such file or directory"), "fault"),
    ],
)
def test_programs_are_there_and_new_enough(read: Any, program: str, answer: Answer, status: str) -> None:
    found = read(basics.facts(), {**GOOD, program: answer})
    topic = {"python": "Python"}.get(program, program)
    assert verdicts(found) == {"Python": "ok", "git": "ok", "bash": "ok", topic: status}
    assert all(finding.next_step for finding in found if finding.status == "fault")


def test_what_a_python_lacks_is_said(read: Any) -> None:
    lacking = Answer(1, "3.11.2\n", "ModuleNotFoundError: No module named 'zlib'\n")
    assert "zlib" in read(basics.facts(), {**GOOD, "python": lacking})[0].text


@pytest.mark.parametrize(
    ("there", "status", "words"),
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
def test_clocks_are_compared_as_far_as_the_answer_allows(there: float, status: str, words: str) -> None:
    [found] = basics.read_clock(Answer(0, f"{there!r}\n"), 1000.0, 1010.0)
    assert (found.status, words in found.text) == (status, True)


def test_a_clock_that_does_not_answer_is_unknown() -> None:
    [found] = basics.read_clock(Answer(None, "", "no answer from python3 within 20 s"), 0, 20)
    assert (found.status, found.text) == ("unknown", "no answer from python3 within 20 s")


def test_this_machine_has_what_its_tests_run_with(read: Any) -> None:
    facts = basics.facts()
    answers = LocalAsker().ask({name: argv for fact in facts for name, argv in fact.questions.items()}, 60)
    assert set(verdicts(read(facts, answers)).values()) == {"ok"}
