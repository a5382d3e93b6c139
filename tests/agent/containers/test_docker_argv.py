"""`docker run` is read as Docker's own CLI reads it, and written back word for word."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.containers.docker_argv import (
    BOOLEANS,
    HIDDEN,
    VALUED,
    DockerArgvError,
    is_run,
    parse_run,
    render,
)

HOSTILE = ["a b", "it's", '"quoted"', "two\nlines", "$HOME;`x`", "-rf", "--rm", "=", "=x", "a=b", "", "übung", "*"]


def _read(*argv: str) -> list[tuple[str, str | None]]:
    return [(o.name, o.value) for o in parse_run(["run", *argv, "img"]).options]


SPELLINGS = [
    (["--rm"], [("rm", None)]),
    (["--rm=false"], [("rm", "false")]),
    (["--name", "x"], [("name", "x")]),
    (["--name=x"], [("name", "x")]),
    (["--name="], [("name", "")]),
    (["--name", "--rm"], [("name", "--rm")]),  # a value may look like an option
    (["-it"], [("interactive", None), ("tty", None)]),
    (["-itv", "/a:/b"], [("interactive", None), ("tty", None), ("volume", "/a:/b")]),
    (["-itv/a:/b"], [("interactive", None), ("tty", None), ("volume", "/a:/b")]),
    (["-it=false"], [("interactive", None), ("tty", "false")]),
    (["-eNAME=x"], [("env", "NAME=x")]),
    (["-e=NAME=x"], [("env", "NAME=x")]),
    (["-e="], [("env", "=")]),
    (["-e", "NAME"], [("env", "NAME")]),
    (["-e", "NAME=a b"], [("env", "NAME=a b")]),
    (["-h", "box"], [("hostname", "box")]),  # -h is no help here
    (["--net", "host"], [("network", "host")]),
    (["--net-alias=a"], [("network-alias", "a")]),
    (["--dns-opt", "x"], [("dns-option", "x")]),
    (["--gpus", '"device=0,1"'], [("gpus", '"device=0,1"')]),
    (["--sig-proxy=0", "-d=T"], [("sig-proxy", "0"), ("detach", "T")]),
]


@pytest.mark.parametrize(("argv", "meaning"), SPELLINGS, ids=[" ".join(argv) for argv, _ in SPELLINGS])
def test_every_spelling_of_an_option_is_understood_and_kept(argv: list[str], meaning: list[tuple[str, str]]) -> None:
    assert _read(*argv) == meaning
    assert render(parse_run(["run", *argv, "img"])) == ["run", *argv, "img"]


def test_what_follows_the_image_is_the_command_even_when_it_looks_like_options() -> None:
    run = parse_run(["run", "--rm", "img", "--rm", "-v", "/a:/b", "--nonsense"])
    assert (run.image, run.command) == ("img", ("--rm", "-v", "/a:/b", "--nonsense"))


IS_RUN = [
    (["run", "img"], True),
    (["container", "run", "img"], True),
    (["-D", "run", "img"], True),
    (["--context=far", "run", "img"], True),
    (["-Hunix://x", "run", "img"], True),
    (["--host", "run", "ps"], False),
    (["container", "ls"], False),
    (["pull", "run"], False),
    (["--version"], False),
    ([], False),
]


@pytest.mark.parametrize(("argv", "expected"), IS_RUN, ids=[" ".join(argv) for argv, _ in IS_RUN])
def test_a_run_is_told_from_other_subcommands(argv: list[str], expected: bool) -> None:
    assert is_run(argv) is expected


WRONG = [
    (["--volum", "/a:/b", "img"], "--volum; the nearest is --volume"),
    (["--shmsize=1g", "img"], "--shmsize; the nearest is --shm-size"),
    (["-itV", "/a:/b", "img"], "-V (in '-itV'); it has -d -i -P -q -t"),
    (["-z", "img"], "no option -z (in '-z'); it has -d -i -P -q -t"),
    (["-i=", "img"], "no option -="),
    (["---rm", "img"], "no option ---rm"),
    (["--rm=yes", "img"], "'yes' is neither true nor false"),
    (["-t=maybe", "img"], "'maybe' is neither true nor false"),
    (["--name"], "--name needs a value"),
    (["-itv"], "-v needs a value"),
    (["--rm"], "has no image"),
    ([], "has no image"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=[" ".join(argv) or "nothing" for argv, _ in WRONG])
def test_what_docker_would_not_accept_is_an_error_that_names_it(argv: list[str], message: str) -> None:
    with pytest.raises(DockerArgvError) as error:
        parse_run(["run", *argv])
    assert message in str(error.value)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "spelling", [["-e", "x"], ["-ex"], ["-e=x"], ["--env=x"], ["--env", "x"], ["-ie", "x"], ["-iex"]]
)
def test_any_new_value_is_read_back_as_itself(spelling: list[str], value: str) -> None:
    run = parse_run(["run", *spelling, "img"])
    changed = dataclasses.replace(run, options=(*run.options[:-1], run.options[-1].with_value(value)))
    again = parse_run(render(changed))
    assert [(o.name, o.value) for o in again.options] == [(o.name, o.value) for o in changed.options]
    assert again.image == "img"


# -- any valid list of options ---------------------------------------------------------------------------------------

texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12))
booleans = st.sampled_from(sorted(BOOLEANS))
truths = st.sampled_from(["", "=true", "=false", "=1", "=F"])
short_booleans = st.sampled_from([letter for letter in BOOLEANS.values() if letter])
short_valued = st.sampled_from([letter for letter in VALUED.values() if letter])
clusters = st.lists(short_booleans, max_size=3).map("".join)

spelled = st.one_of(
    st.tuples(booleans, truths).map(lambda t: [f"--{t[0]}{t[1]}"]),
    st.tuples(st.sampled_from(sorted([*VALUED, *HIDDEN])), texts).map(lambda t: [f"--{t[0]}", t[1]]),
    st.tuples(st.sampled_from(sorted([*VALUED, *HIDDEN])), texts).map(lambda t: [f"--{t[0]}={t[1]}"]),
    st.tuples(clusters, short_booleans, truths).map(lambda t: [f"-{t[0]}{t[1]}{t[2]}"]),
    st.tuples(clusters, short_valued, texts).map(lambda t: [f"-{t[0]}{t[1]}", t[2]]),
    st.tuples(clusters, short_valued, texts.filter(bool)).map(lambda t: [f"-{t[0]}{t[1]}{t[2]}"]),
)
prefixes = st.sampled_from([["run"], ["container", "run"], ["-D", "run"], ["--host", "x y", "run"]])
images = st.sampled_from(["img", "a/b:c@sha256:0", "im age", ""])
dashes = st.sampled_from([[], ["--"]])


@given(prefixes, st.lists(spelled, max_size=8), dashes, images, st.lists(texts, max_size=4))
def test_any_run_is_written_back_word_for_word(
    prefix: list[str], options: list[list[str]], ending: list[str], image: str, command: list[str]
) -> None:
    argv = [*prefix, *(word for option in options for word in option), *ending, image, *command]
    run = parse_run(argv)
    assert render(run) == argv
    assert (run.image, list(run.command), list(run.prefix)) == (image, command, prefix)
