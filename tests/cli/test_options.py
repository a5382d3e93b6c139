"""Declared options: what a command's dataclass says, and the values that a command receives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from ci_tasks.cli.options import Option, build, number, options_of, positional, repeatable, switch, text
from ci_tasks.cli.shared import GivenOptions, OverlayOptions, RowOptions, with_given
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.run.checkout_source import open_source
from tests.parts.commands import COMMANDS, options_of_command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_the_declared_type(name: str) -> None:
    options = options_of_command(name)
    hints = get_type_hints(options)
    for field, option in options_of(options).items():
        assert option.help, field
        required_or_default = option.required or option.default is not None
        kind: Any = tuple[str, ...] if option.kind is tuple else option.kind
        assert hints[field] == (kind if required_or_default else kind | None), field


@pytest.mark.parametrize("name", COMMANDS)
def test_excluded_and_needed_options_exist(name: str) -> None:
    declared = options_of(options_of_command(name))
    named = [other for option in declared.values() for other in option.excludes]
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


NO_HOSTS = Config({}, {}, ())


def test_each_value_has_its_place(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text('{"number": 2, "pull_request": {"draft": true}}')
    options = GivenOptions(
        var=("REGISTRY=a=b", "EMPTY="), input=("model=m",), output=("build.image=i",), github_event=str(event)
    )
    given = with_given(NO_HOSTS, options).given
    assert (given.vars, given.inputs) == ({"REGISTRY": "a=b", "EMPTY": ""}, {"model": "m"})
    assert given.outputs == {"build": {"image": "i"}}
    assert given.event == {"number": 2, "pull_request": {"draft": True}}
    assert given.sources == {
        "vars.REGISTRY": "--var", "vars.EMPTY": "--var",
        "inputs.model": "--input", "needs.build.outputs.image": "--output", "github.event": f"--github-event {event}",
    }  # fmt: skip


def overlay(*words: str) -> OverlayOptions:
    return OverlayOptions(with_=words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GivenOptions(var=("A",)), "--var takes NAME=VALUE, not 'A'"),
        (GivenOptions(input=("=v",)), "--input takes NAME=VALUE, not '=v'"),
        (GivenOptions(var=("A=1", "A=2")), "--var names A twice"),
        (RowOptions(test=("test_b",)), "--test takes FILE or FILE::NAME, not 'test_b'"),
        (RowOptions(test=("a.py::x') or True or ('",)), "--test takes FILE or FILE::NAME"),
        (GivenOptions(output=("image=v",)), "--output takes JOB.NAME=VALUE, not 'image=v'"),
        (GivenOptions(github_event="/nowhere.json"), "cannot read /nowhere.json as JSON"),
        (GivenOptions(workflow_dir=("templates=/tmp",)), "--workflow-dir takes OWNER/REPO=DIR, not 'templates=/tmp'"),
        (GivenOptions(workflow_dir=("a/b=/nowhere",)), "--workflow-dir a/b: /nowhere is no directory"),
        (overlay("sglang"), "--with takes NAME=DIR, not 'sglang'"),
        (overlay("../x=/tmp"), "--with takes NAME=DIR, not '../x=/tmp'"),
        (overlay("sglang=/nowhere"), "--with sglang: /nowhere is no directory"),
        (overlay("sglang=/dev/null"), "--with sglang: /dev/null is no directory"),
        (overlay("sglang=/tmp", "sglang=/usr"), "--with names sglang twice"),
    ],
)
def test_a_malformed_option_says_why(options: GivenOptions, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    with pytest.raises(UsageError, match=message):
        with_given(NO_HOSTS, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "as JSON"), ("[" * 200_000, "as JSON"), ("[1]", "is not a JSON object")],
    ids=["broken", "too deep", "a list"],
)
def test_a_payload_is_a_json_object(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "event.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        with_given(NO_HOSTS, GivenOptions(github_event=str(tmp_path / "event.json")))


WORKFLOW = """
on: {workflow_dispatch: {inputs: {model: {type: string}}}}
jobs:
  build: {runs-on: x, steps: [{run: x}]}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GivenOptions(input=("modle=m",)), "unknown input 'modle' in ci.yml; did you mean 'model'?"),
        (GivenOptions(output=("biuld.image=i",)), "unknown job 'biuld' in ci.yml; did you mean 'build'?"),
    ],
)
def test_a_mistyped_name_is_an_error(tmp_path: Path, options: GivenOptions, message: str) -> None:
    (tmp_path / "ci.yml").write_text(WORKFLOW)
    with pytest.raises(UnknownName) as caught:
        open_source(str(tmp_path), None, "ci.yml", with_given(NO_HOSTS, options).given)
    assert caught.value.message == message


def test_no_persist_and_give_up_are_for_every_host() -> None:
    hosts = Config({"a": HostSpec("a", "ssh", "a"), "b": HostSpec("b", "slurm", "b")}, {}, ())
    without = with_given(hosts, OverlayOptions(no_persist=True))
    assert [spec.persist for spec in without.hosts.values()] == [False, False]
    assert {spec.give_up_minutes for spec in with_given(hosts, RowOptions(give_up=5)).hosts.values()} == {5}
    assert with_given(hosts, OverlayOptions()).hosts == with_given(hosts, RowOptions()).hosts == hosts.hosts
