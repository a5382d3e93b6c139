"""Python, git, bash and the clock; the table of results; facts as a whole, which read whatever programs say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import basics
from ci_tasks.features.doctor import facts_of_host as facts
from ci_tasks.features.doctor.check_results import FAULT, OK, UNKNOWN, WARNING, CheckResult, lines, table_position

GOOD = {"python": Answer(0, "3.8.18\n"), "git": Answer(0, "git version 2.17.0\n"), "bash": Answer(0, "x 5.2.15(1)\n")}


@pytest.mark.parametrize(
    ("program", "answer", "status"),
    [
        ("python", Answer(0, "3.12.1\n"), OK),
        ("python", Answer(0, "3.7.17\n"), FAULT),
        # A Python that was built without what the runner needs, and pyenv's shim for a version that is not there.
        ("python", Answer(1, "3.11.2\n", "ModuleNotFoundError: No module named 'zlib'\n"), FAULT),
        ("python", Answer(127, "", "pyenv: python3: command not found\n"), FAULT),
        ("python", Answer(None, "", "python3: No such file or directory"), FAULT),
        ("git", Answer(0, "git version 2.16.6\n"), FAULT),
        ("git", Answer(None, "", "git: No such file or directory"), FAULT),
        ("bash", Answer(0, "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\nmore\n"), OK),
    ],
)
def test_programs_are_there_and_new_enough(read: Any, program: str, answer: Answer, status: str) -> None:
    results = {result.topic.lower(): result for result in read(basics.facts(), {**GOOD, program: answer})}
    assert {topic: result.status for topic, result in results.items()} == {**dict.fromkeys(GOOD, OK), program: status}
    assert bool(results[program].next_step) is (status == FAULT)
    assert ("zlib" in results[program].text) is ("zlib" in answer.err)


@pytest.mark.parametrize(
    ("there", "status", "text"),
    [
        # Asked at 1000, answered at 1010: between the two nobody can tell.
        (1000.0, OK, "within 10.0 s"),
        (997.0, WARNING, "3 s behind"),
        (1010.0 + 7200, FAULT, "2 h ahead"),
        (None, UNKNOWN, "no answer from python3"),
    ],
)
def test_clocks_are_compared_as_far_as_the_answer_allows(there: float | None, status: str, text: str) -> None:
    answer = Answer(0, f"{there!r}\n") if there else Answer(None, "", "no answer from python3 within 20 s")
    [result] = basics.read_clock(answer, 1000.0, 1010.0)
    assert (result.status, text in result.text) == (status, True)


def test_findings_stand_in_order_with_what_to_do_below_and_do_not_move_the_cursor() -> None:
    results = [
        CheckResult("hub", WARNING, "429\x1b", "wait\x1b"),
        CheckResult("disk", OK, "workspace /data/ci-tasks: 57.5 GB free of 270.6 GB"),
        CheckResult("disk", FAULT, "mount /x:\n not there", "make it"),
        CheckResult("Python", OK, "3.11.2"),
    ]
    shown = lines("box (ssh)", results, 60)
    assert "\x1b" not in "".join(shown)
    assert [line.replace("\ufffd", "") for line in shown] == [
        "box (ssh)",
        "  ok       Python  3.11.2",
        "  ok       disk    workspace /data/ci-tasks: 57.5 GB free of",
        "                   270.6 GB",
        "  fault            mount /x: not there",
        "                   → make it",
        "  warning  hub     429",
        "                   → wait",
    ]


HOSTS = [
    HostSpec("d", mounts={"/a": "/b"}),
    HostSpec("p", runtime="podman", gpus=4, pull="never"),
    HostSpec("s", runtime="none", gpus=8, simulate=True),
    HostSpec("a", runtime="apptainer", gpus=0),
]
ODD = [
    "",
    "null",
    "[]",
    "[1]",
    "{}",
    '{"files": [1], "Runtimes": [1], "version": 3}',
    "0, GPU-1, H, 5, [N/A], 1",
    "\0\n,",
]


@given(st.data(), st.sampled_from(HOSTS), st.sampled_from([0, 0, 1, 127, None]))
def test_no_answer_is_too_odd(data: st.DataObject, host: HostSpec, code: int | None) -> None:
    odd, host_facts = st.sampled_from(ODD), facts.first_round(host, "~/.ci-tasks", ["image"])
    answers = {n: Answer(code, data.draw(odd), data.draw(st.text())) for f in host_facts for n in f.queries}
    answers |= {"gpus": Answer(0, "0, GPU-1, H, 5, 1, 1")} if "gpus" in answers else {}
    later = facts.second_round(host, ["image"], answers)
    answers |= {n: Answer(code, data.draw(odd)) for f in later for n in f.queries if n not in answers}
    for result in [result for each in [*host_facts, *later] for result in each.parse(answers)]:
        assert table_position(result) >= 0 and result.text
