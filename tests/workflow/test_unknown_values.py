"""How a person gives what only GitHub knows."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.expressions import Unknown
from ci_tasks.workflow.unknown_values import how_to_give, why_unknown


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("vars.MODEL_DIR", "--var MODEL_DIR=VALUE"),
        ("inputs.model", "--input model=VALUE"),
        ("github.event.inputs.model", "--input model=VALUE"),
        ("needs.build.outputs.image", "--output build.image=VALUE"),
        ("github.event.pull_request.title", "--github-event FILE"),
        ("github.head_ref", "--github-event FILE"),
        ("secrets.TOKEN", "the environment variable TOKEN"),
    ],
)
def test_each_kind_of_value_has_its_option(name: str, way: str) -> None:
    assert way in how_to_give([name])


def test_what_nobody_can_give_has_no_hint() -> None:
    assert how_to_give(["github.repository_id", "steps.a.outputs.b"]) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vars.A", "needs vars.A, which only GitHub knows"),
        ("secrets.A", "needs secrets.A, which is not in your environment"),
        ("steps.a.outcome", "which is known only while it runs: steps.a.outcome"),
    ],
)
def test_the_reason_names_the_value(name: str, why: str) -> None:
    assert why_unknown(Unknown.named_value(name)).endswith(why)
