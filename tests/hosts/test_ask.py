"""This machine's programs are asked, and answer as what they are."""

from __future__ import annotations

import pytest

from ci_tasks.hosts.ask import Answer, LocalAsker


def test_questions_are_answered_by_name() -> None:
    said = LocalAsker().ask({"yes": ["sh", "-c", "echo out; echo err >&2; exit 3"], "no": ["no-such-program"]}, 30)
    assert said["yes"] == Answer(3, "out\n", "err\n")
    assert said["no"].absent
    assert "no-such-program" in said["no"].said


def test_a_program_that_hangs_spoils_no_other_answer() -> None:
    said = LocalAsker().ask({"hangs": ["sleep", "600"], "answers": ["echo", "here"]}, 0.5)
    assert said["answers"] == Answer(0, "here\n")
    assert said["hangs"].timed_out
    assert not said["hangs"].absent


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(1, "some output\n", "first\nlast\n\n"), "last"),
        (Answer(1, "only output\n"), "only output"),
        (Answer(0), "it said nothing"),
    ],
)
def test_the_last_line_tells_what_is_wrong(answer: Answer, said: str) -> None:
    assert answer.said == said


def test_a_program_that_env_does_not_find_is_absent() -> None:
    assert LocalAsker().ask({"it": ["env", "A=b", "no-such-program"]}, 30)["it"].absent
