"""Which `docker run` a script has: as bash would read it, without running anything."""

from __future__ import annotations

import pytest

from ci_tasks.workflow.shell import commands, docker_run

IMAGES: list[tuple[str, str | None]] = [
    # Alone, with options, by a path, with docker's own options, in its longer form.
    ("docker run img", "img"),
    ("docker run --rm -it -v /a:/b --gpus all img bash -c x", "img"),
    ("/usr/bin/docker run img", "img"),
    ("docker container run img", "img"),
    # Over several lines. A blank behind the backslash ends the command, so that no image is named.
    ("docker run \\\n  --rm \\\n  img \\\n  ls", "img"),
    ("docker run \\\r\n  --rm \\\r\n  img\r\n", "img"),
    ("docker \\\n  run img", "img"),
    ("docker run --rm \\  \n  img", None),
    # Behind other commands, in conditions, loops and groups.
    ("set -e; cd x && docker run img", "img"),
    ("docker pull a\ndocker rm -f b || true\ndocker run img", "img"),
    ("if ! docker run img; then exit 1; fi", "img"),
    ("for x in a b; do docker run img; done", "img"),
    ("while true; do :; done; { docker run img; }", "img"),
    ("(docker run img)", "img"),
    ("case $x in a) docker run img;; esac", "img"),
    ("docker run img | tee log &", "img"),
    # Behind words that run what follows them.
    ("sudo docker run img", "img"),
    ("sudo -E -u ci docker run img", "img"),
    ("exec docker run img", "img"),
    ("timeout 30m docker run img", "img"),
    ("timeout -k 10 1.5h docker run img", "img"),
    ("A=1 B='2 3' docker run img", "img"),
    ("env A=1 nice -n 5 docker run img", "img"),
    # In a command substitution, quoted or not.
    ("ID=$(docker run -d img)", "img"),
    ('echo "id: $(docker run -d img)"', "img"),
    ("docker run -v $(pwd):/x -e N=$((1 + 2)) img", "img"),
    ("ID=`docker run -d img`", "img"),
    # The first of several counts.
    ("docker run a\ndocker run b", "a"),
    # Quotes.
    ("docker run -e 'A=b c' -e \"D=e $F\" 'img' ls", "img"),
    ('docker run -e A=\\"b img', "img"),
    ('echo "it\'s"; docker run img', "img"),
    # Text is no command: comments, strings, here-documents, arguments of others.
    ("# docker run no", None),
    ("x # docker run no\ndocker run img", "img"),
    ("echo a#b; docker run img", "img"),
    ("echo 'docker run no'", None),
    ('echo "docker run no"', None),
    ("bash -c 'docker run inner'", None),
    ("echo docker run no", None),
    ("git commit -m docker run no", None),
    ("cat <<EOF\ndocker run no\nEOF\ndocker run img", "img"),
    ("cat <<'EOF' > x\ndocker run no\nEOF\n", None),
    ("cat <<-END\n\tdocker run no\n\tEND\ndocker run img", "img"),
    ("cat << A; cat << B\ndocker run 1\nA\ndocker run 2\nB\ndocker run img", "img"),
    ("cat <<EOF\ndocker run no", None),
    ("cat <<< word\ndocker run img", "img"),
    ("docker build -t run img", None),
    ("podman run img", None),
    ("mydocker run img", None),
    # What Docker would refuse gives no image, and what comes later still counts.
    ("docker run --no-such-option img", None),
    ("docker run --rm", None),
    ("docker run --bogus a\ndocker run img", "img"),
    # Unclosed quotes are bash's to refuse.
    ("docker run 'img", "img"),
    ("", None),
    ("\n\n", None),
]


@pytest.mark.parametrize(("script", "image"), IMAGES)
def test_the_image_is_that_of_the_first_docker_run(script: str, image: str | None) -> None:
    run = docker_run(script)
    assert (run.image if run else None) == image


@pytest.mark.parametrize(
    ("script", "image"),
    [
        # From the environment, and from plain assignments before it, which go first.
        ("docker run $IMAGE", "env:1"),
        ('docker run "${IMAGE}"', "env:1"),
        ("IMAGE=own:2\ndocker run $IMAGE", "own:2"),
        ("export TAG=3; docker run repo:${TAG} ls", "repo:3"),
        ("BASE=repo\nIMAGE=$BASE:4\ndocker run $IMAGE", "repo:4"),
        # A default, where there is nothing else.
        ("docker run repo:${NOPE:-5}", "repo:5"),
        ("docker run repo:${NOPE-5}", "repo:5"),
        ("docker run repo:${IMAGE:-5}", "repo:env:1"),
        # What is not known stays as it is written.
        ("docker run $NOPE", "$NOPE"),
        ("X=$(cat file)\ndocker run $X", "$(…)"),
        ("docker run ${A//b/c}", "${A//b/c}"),
        # Assignments behind it, or to another program, do not count.
        ("docker run $IMAGE\nIMAGE=late", "env:1"),
        ("echo IMAGE=no\ndocker run $IMAGE", "env:1"),
    ],
)
def test_variables_of_the_image_are_filled_in_where_they_are_known(script: str, image: str) -> None:
    run = docker_run(script, {"IMAGE": "env:1"})
    assert run is not None
    assert run.image == image


def test_the_words_are_those_that_bash_would_pass_on() -> None:
    run = docker_run("docker run -e 'A=b c' --name x\"y z\" img bash -lc '\n  echo \"hi\" # no comment\n'")
    assert run is not None
    assert run.values("env") == ["A=b c"]
    assert run.last("name") == "xy z"
    assert run.command == ("bash", "-lc", '\n  echo "hi" # no comment\n')


def test_a_script_is_its_simple_commands_inner_ones_first() -> None:
    assert list(commands("a 1 && b \"$(c '2 3')\" | d > e\n# f\ng;")) == [
        ["a", "1"],
        ["c", "2 3"],
        ["b", "$(…)"],
        ["d", ">", "e"],
        ["g"],
    ]


@pytest.mark.parametrize(
    "script", ["$(" * 20_000, "<<A " * 5_000 + "\n" * 5_000, "'" * 99_999, '"$(' * 9_999, "\\" * 9]
)
def test_hostile_text_is_read_and_comes_to_nothing(script: str) -> None:
    assert docker_run(script) is None
