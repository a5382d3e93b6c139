"""CI's `docker run` as the words of one apptainer call: what is mapped, what is lost, and that no secret shows."""

from __future__ import annotations

import pytest

from ci_tasks.agent.containers.apptainer import image_name, rootless_command
from ci_tasks.agent.containers.docker_argv import parse_run
from ci_tasks.agent.containers.rootless import RootlessCommand

ISOLATED = ["--contain", "--cleanenv", "--no-home", "--no-umask", "--no-eval"]
DIGEST = "sha256:" + "0a" * 32
CI = ["run", "--rm", "--gpus", "all", "--ipc=host", "--shm-size=32g", "--ulimit", "memlock=-1", "--network=host"]
CI += ["--privileged", "-v", "/data:/root/data:ro", "-w", "/work", "-e", "HF_TOKEN", "slimerl/slime:latest"]
CI += ["bash", "-c", "python t.py; exit $?"]


def made(*args: str, variables: dict[str, str] | None = None, **environ: str) -> RootlessCommand:
    return rootless_command(parse_run(args), variables or {}, environ, "/run/tmp/container-1")


def deviations(*args: str) -> list[str]:
    return [deviation.what for deviation in made(*args).deviations]


def test_a_run_of_ci_is_one_isolated_container() -> None:
    command = made(*CI, variables={"HF_TOKEN": "s3cret"})
    assert list(command.argv) == [
        *["apptainer", "run", *ISOLATED, "--pid", "--bind", "/dev/shm:/dev/shm", "--fakeroot", "--nv"],
        *["--writable-tmpfs", "--workdir", "/run/tmp/container-1", "--bind", "/data:/root/data:ro"],
        *["--pwd", "/work", "docker://slimerl/slime:latest", "bash", "-c", "python t.py; exit $?"],
    ]
    assert command.environment == {"APPTAINERENV_HF_TOKEN": "s3cret"}
    assert "s3cret" not in repr(command)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu", "docker://ubuntu"),
        ("nvcr.io/nvidia/pytorch:24.01", "docker://nvcr.io/nvidia/pytorch:24.01"),
        ("registry:5000/a/b", "docker://registry:5000/a/b"),
        (f"slimerl/slime@{DIGEST}", f"docker://slimerl/slime@{DIGEST}"),
        (f"slimerl/slime:v1@{DIGEST}", f"docker://slimerl/slime@{DIGEST}"),
        ("/data/slime.sif", "/data/slime.sif"),
    ],
)
def test_an_image_is_named_as_apptainer_reads_it(image: str, name: str) -> None:
    assert image_name(image) == name


def test_run_knows_the_images_entrypoint_and_command_and_exec_is_told() -> None:
    assert list(made("run", "-w", "/", "img").argv[-3:]) == ["--pwd", "/", "docker://img"]
    own = made("run", "--entrypoint", "bash", "img", "-c", "ls").argv
    assert (own[1], list(own[-4:])) == ("exec", ["docker://img", "bash", "-c", "ls"])


MAPPED: list[tuple[list[str], list[str], bool]] = [
    (["--pid=host"], ["--pid"], False),
    (["--ipc=host"], ["--ipc"], False),
    (["--ipc=private"], ["--ipc"], True),
    (["--user", "1000"], ["--fakeroot"], False),
    (["--user", "root"], ["--fakeroot"], True),
    (["--read-only"], ["--writable-tmpfs"], False),
    (["--hostname", "h"], ["--hostname", "h"], True),
    (["--tmpfs", "/x"], ["--scratch", "/x"], True),
    (["-v", "/a:/b"], ["--bind", "/a:/b"], True),
    ([], ["--nv"], False),
]


@pytest.mark.parametrize(("flags", "expected", "there"), MAPPED, ids=[str(flags) for flags, _, _ in MAPPED])
def test_a_flag_that_apptainer_has_words_for(flags: list[str], expected: list[str], there: bool) -> None:
    argv = list(made("run", *flags, "img", "ls").argv)
    assert (expected in [argv[at : at + len(expected)] for at in range(len(argv))]) is there


@pytest.mark.parametrize(
    ("flags", "what", "lost"),
    [
        ([], "network", True),
        (["--network=host"], "network", False),
        ([], "processes", False),
        ([], "ipc", False),
        ([], "workdir", True),
        (["--hostname", "h"], "container flags", False),
        (["--dns", "1.1.1.1"], "container flags", True),
        (["--user", "1000"], "user", True),
        (["--read-only"], "room to write", False),
    ],
)
def test_what_is_lost_is_a_deviation_and_nothing_else_is(flags: list[str], what: str, lost: bool) -> None:
    assert (what in deviations("run", *flags, "img", "ls")) is lost


def test_the_host_gives_no_variable_but_those_that_apptainer_reads_itself() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/me", "APPTAINER_CACHEDIR": "/c", "http_proxy": "p"}
    leaks = {"PYTHONPATH": "x", "APPTAINERENV_LEAK": "x", "SINGULARITYENV_LEAK": "x"}
    command = made("run", "img", "ls", variables={"PATH": "/in", "A": "$B"}, **kept, **leaks)
    assert command.environment == {**kept, "APPTAINERENV_PATH": "/in", "APPTAINERENV_A": "$B"}
