"""Declared options: what a command's dataclass says, and the values that a command receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from ci_tasks.cli.options import Option, build, number, options_of, positional, repeatable, switch, text
from ci_tasks.errors import UsageError
from tests.parts.commands import COMMANDS, options_of_command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_the_declared_type(name: str) -> None:
    options = options_of_command(name)
    hints = get_type_hints(options)
    for field, option in options_of(options).items():
        assert option.help or option.refused, field
        required_or_default = option.required or option.default is not None
        kind: Any = tuple[str, ...] if option.kind is tuple else option.kind
        assert hints[field] == (kind if required_or_default else kind | None), field


@pytest.mark.parametrize("name", COMMANDS)
def test_excluded_and_needed_options_exist(name: str) -> None:
    declared = options_of(options_of_command(name))
    named = [other for option in declared.values() for other, _, _ in option.excludes]
    named += [option.needs for option in declared.values() if option.needs]
    assert set(named) <= set(declared)


@dataclass(frozen=True)
class Example:
    label: str = positional("a label").field()
    jobs: int = number("jobs", "rows", default=2).field()
    steps: int | None = number("steps", "steps", minimum=20).field()
    days: float | None = Option("days", float, unit="days").field()
    names: str | None = text("names", commas=True, choices=("a", "b")).field()
    env: tuple[str, ...] = repeatable("env", "NAME=VALUE").field()
    keep: bool = switch("keep", needs="names").field()
    image: str | None = text("image", environment="EXAMPLE_IMAGE").field()
    gone: bool = switch("gone", feature="no-such-feature").field()


def test_text_becomes_typed_values_and_missing_options_their_defaults() -> None:
    values = {"label": "x", "days": "1.5", "env": ["A=1", "B=2"], "names": "a, b", "keep": True, "steps": "20"}
    built = build(Example, values, "example")
    assert built == Example(label="x", days=1.5, env=("A=1", "B=2"), names="a, b", keep=True, steps=20)
    assert built.jobs == 2


def test_an_environment_variable_replaces_a_missing_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_IMAGE", "from-environment")
    assert build(Example, {"label": "x"}, "example").image == "from-environment"
    assert build(Example, {"label": "x", "image": "given"}, "example").image == "given"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"label": None}, "example needs LABEL"),
        ({"label": ""}, "example: LABEL is empty"),
        ({"names": ""}, "example: --names is empty"),
        ({"names": " , "}, "example: --names is empty"),
        ({"steps": "19"}, "--steps takes a whole number of steps of at least 20, not '19'"),
        ({"steps": "9" * 5000}, "--steps takes a whole number of steps of at least 20, not '999"),
        ({"days": "-1"}, "--days takes a number of days, not '-1'"),
        ({"days": "1.5.2"}, "--days takes a number of days, not '1.5.2'"),
        ({"names": "a,c"}, "invalid value 'c' for --names"),
        ({"keep": True}, "--keep needs --names TEXT"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_option(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(Example, {"label": "x", **values}, "example")


def test_an_option_of_a_missing_feature_does_not_exist() -> None:
    assert "gone" not in options_of(Example)
    assert build(Example, {"label": "x", "gone": True}, "example").gone is False
