"""`docker run` is read as Docker's own CLI reads it, and written back with the same meaning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.docker_argv import BOOLEANS, HIDDEN, SHORT, DockerArgvError, is_run, parse_run, render


def _read(*argv: str) -> list[tuple[str, str | None]]:
    return [(o.name, o.value) for o in parse_run(["run", *argv, "img"]).options]


SPELLINGS = [
    (["--rm"], [("rm", None)]),
    (["--rm=false"], [("rm", "false")]),
    (["--name="], [("name", "")]),
    (["--name", "--rm"], [("name", "--rm")]),  # a value may look like an option
    (["-itv/a:/b"], [("interactive", None), ("tty", None), ("volume", "/a:/b")]),
    (["-it=false"], [("interactive", None), ("tty", "false")]),
    (["-e=NAME=x"], [("env", "NAME=x")]),
    (["-e="], [("env", "=")]),
    (["-e", "NAME=a b"], [("env", "NAME=a b")]),
    (["--net", "host"], [("network", "host")]),
    (["--gpus", '"device=0,1"'], [("gpus", '"device=0,1"')]),
    (["--sig-proxy=0", "-d=T"], [("sig-proxy", "0"), ("detach", "T")]),
]


@pytest.mark.parametrize(("argv", "meaning"), SPELLINGS, ids=[" ".join(argv) for argv, _ in SPELLINGS])
def test_every_spelling_of_an_option_is_understood(argv: list[str], meaning: list[tuple[str, str]]) -> None:
    assert _read(*argv) == meaning


def test_options_keep_their_words_and_those_of_a_cluster_are_written_one_by_one() -> None:
    argv = ["run", "--name=x", "-v/a:/b", "-itv", "/a:/b", "-ie=A=1", "--", "img", "-it", "x y"]
    here = ["run", "--name=x", "-v/a:/b", "-i", "-t", "-v", "/a:/b", "-i", "-e=A=1", "img", "-it", "x y"]
    assert render(parse_run(argv)) == here


def test_a_run_is_told_from_other_subcommands() -> None:
    assert is_run(["run", "img"]) and is_run(["container", "run", "img"])
    assert not any(map(is_run, (["container", "ls"], ["pull", "run"], ["--version"], [])))


WRONG = [
    (["run", "-itV", "/a:/b", "img"], "no option -V"),
    (["run", "-i=", "img"], "no option -="),
    (["run", "--name"], "--name needs a value"),
    (["run", "--rm"], "has no image"),
    (["-H", "unix://x", "run", "img"], "docker -H: no options before the command"),
    (["ps"], "not a docker run"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=[" ".join(argv) or "nothing" for argv, _ in WRONG])
def test_what_docker_or_we_would_not_accept_is_an_error_that_names_it(argv: list[str], message: str) -> None:
    with pytest.raises(DockerArgvError) as error:
        parse_run(argv)
    assert message in str(error.value)


# -- any valid list of options ---------------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from(["a b", "it's", "two\nlines", "-rf", "--rm", "=", "=x", ""]),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12),
)
flags = st.sampled_from([letter for letter, name in SHORT.items() if name in BOOLEANS])
valued = st.sampled_from([letter for letter, name in SHORT.items() if name not in BOOLEANS])
names = st.sampled_from(["env", "mount", "gpus", "name", *HIDDEN])
spelled = st.one_of(
    st.sampled_from(sorted(BOOLEANS)).map(lambda name: [f"--{name}"]),
    st.tuples(names, texts).map(lambda t: [f"--{t[0]}", t[1]]),
    st.tuples(names, texts).map(lambda t: [f"--{t[0]}={t[1]}"]),
    st.tuples(st.lists(flags, max_size=3).map("".join), valued, texts).map(lambda t: [f"-{t[0]}{t[1]}", t[2]]),
)


@given(st.lists(spelled, max_size=8), st.lists(texts, max_size=4))
def test_any_run_means_the_same_when_it_is_written_back(options: list[list[str]], command: list[str]) -> None:
    run = parse_run(["run", *(word for option in options for word in option), "img", *command])
    again = parse_run(render(run))
    assert again == run
    assert (run.image, list(run.command)) == ("img", command)
