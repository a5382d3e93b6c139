"""What only GitHub knows stays unknown through operators and functions, unless the result does not depend on it."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.expressions import condition, evaluate, interpolate
from ci_tasks.workflow.values import OpenObject, Unknown, Value, shown
from tests.parts.cases import cases

CASES = cases("workflow/data/unknown-results.yaml")

CONTEXTS: dict[str, Value] = {
    "vars": OpenObject("vars", {"KNOWN": "k"}),
    "secrets": OpenObject("secrets", {"GIVEN": "s"}, absent=True),
    "matrix": {"name": "m", "list": ["a", "b"]},
    "github": {
        "event_name": "pull_request",
        "event": {"sender": OpenObject("github.event.sender"), "items": [{"n": "x"}, OpenObject("item", {"n": "y"})]},
    },
    "needs": {"a": {"result": "success", "outputs": {"x": Unknown.named_value("needs.a.outputs.x")}}},
    "env": {"U": Unknown.named_value("vars.FROM")},
}


@pytest.mark.parametrize(("expression", "names"), CASES["what depends on it is unknown and names it"])
def test_what_depends_on_it_is_unknown_and_names_it(expression: str, names: list[str]) -> None:
    value = evaluate(expression, CONTEXTS)
    unknown = value[0] if isinstance(value, list) else value
    assert isinstance(unknown, Unknown) and list(unknown.names) == names


@pytest.mark.parametrize(("expression", "value"), CASES["what does not depend on it has its value"])
def test_what_does_not_depend_on_it_has_its_value(expression: str, value: object) -> None:
    assert evaluate(expression, CONTEXTS) == value


@pytest.mark.parametrize(("text", "holds"), CASES["an if is undecided only where it depends on it"])
def test_an_if_is_undecided_only_where_it_depends_on_it(text: str, holds: bool | None) -> None:
    decided = condition(text, CONTEXTS)
    assert (None if isinstance(decided, Unknown) else decided) is holds


def test_a_text_shows_what_is_unknown_in_it_by_name() -> None:
    value = interpolate("rm -rf ${{ vars.DIR }}/${{ matrix.name }}/${{ vars.A == vars.B }}", CONTEXTS)
    assert isinstance(value, Unknown)
    assert shown(value) == "rm -rf <vars.DIR>/m/<vars.A, vars.B>"
    assert value.names == ("vars.DIR", "vars.A", "vars.B")
