"""`--var`, `--input`, `--output` and `--github-event`: what a person says of what only GitHub knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.cli.given_options import GivenOptions, OverlayOptions, RowOptions, with_given
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.run.checkout_source import open_source

NO_HOSTS = Config({}, {}, ())


def test_each_value_has_its_place(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text('{"number": 2, "pull_request": {"draft": true}}')
    options = GivenOptions(
        var=("REGISTRY=a=b", "EMPTY="), input=("model=m",), output=("build.image=i",), github_event=str(event)
    )
    given = with_given(NO_HOSTS, options).given
    assert given.vars == {"REGISTRY": "a=b", "EMPTY": ""}
    assert given.inputs == {"model": "m"}
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
        (GivenOptions(github_event="~no-such-user/x"), "'~no-such-user/x' begins with a user whom this machine"),
        (RowOptions(test=("test_b",)), "--test takes FILE::NAME, not 'test_b'"),
        (RowOptions(test=("a.py::x') or True or ('",)), "--test takes FILE::NAME"),
        (GivenOptions(output=("image=v",)), "--output takes JOB.NAME=VALUE, not 'image=v'"),
        (GivenOptions(github_event="/nowhere.json"), "cannot read /nowhere.json: No such file"),
        (overlay("sglang"), "--with takes NAME=DIR, not 'sglang'"),
        (overlay("../x=/tmp"), "--with takes NAME=DIR, not '../x=/tmp'"),
        (overlay("sglang=/nowhere"), "--with sglang: /nowhere does not exist"),
        (overlay("sglang=/dev/null"), "--with sglang: /dev/null is not a directory"),
        (overlay("sglang=/tmp", "sglang=/usr"), "--with names sglang twice"),
    ],
)
def test_a_malformed_option_says_what_is_wrong(
    options: GivenOptions, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    with pytest.raises(UsageError, match=message):
        with_given(NO_HOSTS, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[" * 200_000, "is not JSON"), ("[1]", "is not a JSON object")],
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
