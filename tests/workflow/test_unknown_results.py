"""What only GitHub knows stays unknown through operators and functions, unless the result does not depend on it."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.expressions import condition, evaluate, interpolate
from ci_tasks.workflow.values import OpenObject, Unknown, Value, shown

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


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("vars.X", ["vars.X"]),
        ("vars['X']", ["vars.X"]),
        ("vars[format('{0}_DIR', matrix.name)]", ["vars.m_DIR"]),
        ("vars[vars.KEY]", ["vars.KEY"]),
        ("vars.*", ["vars"]),
        ("env.U", ["vars.FROM"]),
        ("github.event.sender.login", ["github.event.sender.login"]),
        ("github.event.items.*.other", ["item.other"]),
        ("toJSON(github.event)", ["github.event.sender", "item"]),
        ("toJSON(needs)", ["needs.a.outputs.x"]),
        ("fromJSON(vars.X).key[0]", ["vars.X"]),
        ("fromJSON(vars.X).*", ["vars.X"]),
        ("format('{0}-{1}', vars.X, needs.a.outputs.x)", ["vars.X", "needs.a.outputs.x"]),
        ("join(github.event.items.*.other)", ["item.other"]),
        ("vars.X == 'a'", ["vars.X"]),
        ("'a' != vars.X", ["vars.X"]),
        ("vars.X < vars.Y", ["vars.X", "vars.Y"]),
        ("!vars.X", ["vars.X"]),
        ("contains(vars.X, 'a')", ["vars.X"]),
        ("startsWith('a', vars.X)", ["vars.X"]),
        ("contains(github.event.items.*.other, 'a')", ["item.other"]),
        ("vars.X || 'default'", ["vars.X"]),
        ("vars.X && 'a' || 'b'", ["vars.X"]),
        ("vars.X && false", ["vars.X"]),
        ("case(vars.X == 'a', 1, 2)", ["vars.X"]),
        # An absent value has no text, and neither has what is made of it.
        ("secrets.UNSET", ["secrets.UNSET"]),
        ("format('x{0}', secrets.UNSET)", ["secrets.UNSET"]),
        ("toJSON(secrets.UNSET)", ["secrets.UNSET"]),
    ],
)
def test_what_depends_on_it_is_unknown_and_names_it(expression: str, names: list[str]) -> None:
    value = evaluate(expression, CONTEXTS)
    unknown = value[0] if isinstance(value, list) else value
    assert isinstance(unknown, Unknown) and list(unknown.names) == names


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("vars.KNOWN", "k"),
        ("false && vars.X", False),
        ("matrix.name || vars.X", "m"),
        ("github.event_name == 'push' && vars.X || 'other'", "other"),
        ("(vars.X && false) || 'b'", "b"),
        ("(vars.X || true) && 'b'", "b"),
        ("!(vars.X && false)", True),
        ("case(true, 1, vars.X)", 1),
        ("contains(fromJSON('[\"a\"]'), 'a')", True),
        ("contains(github.event.items.*.n, 'x')", True),
        ("needs.*.result", ["success"]),
        ("matrix.name[vars.X]", None),
        # Absent: null wherever it is compared or tested.
        ("secrets.UNSET || 'none'", "none"),
        ("secrets.UNSET == ''", True),
        ("secrets.UNSET != ''", False),
        ("secrets.UNSET && 'a' || 'b'", "b"),
        ("!secrets.UNSET", True),
        ("contains(secrets.UNSET, 'a')", False),
        ("startsWith(secrets.UNSET, '')", True),
        ("secrets.GIVEN != ''", True),
    ],
)
def test_what_does_not_depend_on_it_has_its_value(expression: str, value: object) -> None:
    assert evaluate(expression, CONTEXTS) == value


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("vars.X", None),
        ("vars.X && matrix.name == 'm'", None),
        ("vars.X && matrix.name == 'other'", False),
        ("vars.X == '1' || matrix.name == 'm'", True),
        ("failure() && vars.X", False),
        ("always() || vars.X", True),
        ("${{ vars.X }} text", None),
        ("vars.X != '' && secrets.UNSET != ''", False),
    ],
)
def test_an_if_is_undecided_only_where_it_depends_on_it(text: str, holds: bool | None) -> None:
    decided = condition(text, CONTEXTS)
    assert (None if isinstance(decided, Unknown) else decided) is holds


def test_a_text_shows_what_is_unknown_in_it_by_name() -> None:
    value = interpolate("rm -rf ${{ vars.DIR }}/${{ matrix.name }}/${{ vars.A == vars.B }}", CONTEXTS)
    assert isinstance(value, Unknown)
    assert shown(value) == "rm -rf <vars.DIR>/m/<vars.A, vars.B>"
    assert value.names == ("vars.DIR", "vars.A", "vars.B")
