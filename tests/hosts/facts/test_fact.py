"""Facts as a whole: whatever programs say, they are read to the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.hosts import facts
from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts import fact
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import place

HOSTS = [
    HostSpec("d", mounts={"/a": "/b"}),
    HostSpec("p", runtime="podman", gpus=4, pull="never"),
    HostSpec("s", runtime="none", gpus=8, simulate=True),
    HostSpec("a", runtime="apptainer", gpus=0),
]
ODD = st.sampled_from(
    [
        "",
        "null",
        "[]",
        "[1]",
        "{}",
        '{"files": [1], "Runtimes": [1], "version": 3}',
        "0, GPU-1, H, 5, [N/A], 1",
        "\x00\n,",
    ]
)


@given(st.data(), st.sampled_from(HOSTS), st.sampled_from([0, 0, 1, 127, None]))
def test_no_answer_is_too_odd(data: st.DataObject, host: HostSpec, code: int | None) -> None:
    asked = facts.first(host, "~/.ci-tasks", ["image"])
    gpus = Answer(0, "0, GPU-1, H, 5, 1, 1")
    answers = {n: Answer(code, data.draw(ODD), data.draw(st.text())) for f in asked for n in f.questions}
    answers = {**answers, "gpus": gpus} if "gpus" in answers else answers
    later = facts.second(host, ["image"], answers)
    answers |= {n: Answer(code, data.draw(ODD)) for f in later for n in f.questions if n not in answers}
    for finding in [finding for each in [*asked, *later] for finding in each.read(answers)]:
        assert place(finding) >= 0
        assert finding.text


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_a_name_means_one_question(host: HostSpec) -> None:
    asked: dict[str, list[str]] = {}
    for each in facts.first(host, "~/.ci-tasks", ["image"]):
        for name, argv in each.questions.items():
            assert asked.setdefault(name, [*argv]) == [*argv]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7260, "2 h"), (93600, "1 d")]
)
def test_durations_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert fact.ago(seconds) == text
