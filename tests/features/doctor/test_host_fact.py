"""Facts as a whole: whatever programs say, they are read to the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import facts_of_host as facts
from ci_tasks.features.doctor.check_results import table_position
from ci_tasks.features.doctor.host_fact import ago

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
    host_facts = facts.first_round(host, "~/.ci-tasks", ["image"])
    gpus = QueryAnswer(0, "0, GPU-1, H, 5, 1, 1")
    answers = {n: QueryAnswer(code, data.draw(ODD), data.draw(st.text())) for f in host_facts for n in f.queries}
    answers = {**answers, "gpus": gpus} if "gpus" in answers else answers
    later = facts.second_round(host, ["image"], answers)
    answers |= {n: QueryAnswer(code, data.draw(ODD)) for f in later for n in f.queries if n not in answers}
    for result in [result for each in [*host_facts, *later] for result in each.parse(answers)]:
        assert table_position(result) >= 0
        assert result.text


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_a_name_means_one_question(host: HostSpec) -> None:
    queries: dict[str, list[str]] = {}
    for each in facts.first_round(host, "~/.ci-tasks", ["image"]):
        for name, argv in each.queries.items():
            assert queries.setdefault(name, [*argv]) == [*argv]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7260, "2 h"), (93600, "1 d")]
)
def test_durations_are_shown_in_their_largest_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text
