"""CI's `docker run` in podman's words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ci_tasks.agent.containers.docker_argv import DockerOption, parse_run, render
from ci_tasks.agent.containers.podman import OWN_INIT, adapt, init_options, qualified_image
from ci_tasks.agent.records import Deviation

DEFAULTS = ["--http-proxy=false", "--pids-limit", "-1"]  # docker's


def _adapted(argv: list[str], init: Sequence[DockerOption] = ()) -> tuple[list[str], list[Deviation]]:
    run, deviations = adapt(parse_run(["run", "--privileged", *argv, "img"]), init, "img")
    words = render(run)
    assert words[:2] == ["run", "--privileged"] and words[-1] == "img"
    return words[2:-1], deviations


def _whats(deviations: list[Deviation]) -> list[str]:
    return [deviation.what for deviation in deviations]


PODMAN = [
    (["--ipc=host", "--shm-size=32g"], ["--ipc=host"], ["shm-size"]),
    (["--shm-size", "32g"], ["--shm-size", "32g"], []),
    (["--memory-swap=0"], [], ["memory-swap"]),
    (["--memory-swap", "-1"], ["--memory-swap", "-1"], []),
    (["--gpus", "all"], ["--device", "nvidia.com/gpu=all"], ["gpus"]),
    (["--gpus=all,capabilities=utility"], ["--device", "nvidia.com/gpu=all"], ["gpus"]),
    (["--gpus", "2"], ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"], ["gpus"]),
    (['--gpus="device=3,5"'], ["--device", "nvidia.com/gpu=3", "--device", "nvidia.com/gpu=5"], ["gpus"]),
    (["--pull=always"], ["--pull=always"], []),
]


@pytest.mark.parametrize(("argv", "expected", "whats"), PODMAN, ids=[" ".join(argv) for argv, _, _ in PODMAN])
def test_what_podman_refuses_is_put_in_its_words(argv: list[str], expected: list[str], whats: list[str]) -> None:
    got, deviations = _adapted(argv)
    assert got == [*expected, *DEFAULTS]
    assert _whats(deviations) == ["runtime", *whats]


def test_options_that_podman_lacks_are_left_out_by_name() -> None:
    got, deviations = _adapted(["--runtime=nvidia", "--domainname", "a", "-it", "--link=x"])
    assert got == ["-it", *DEFAULTS]
    assert [(item.what, item.ci, item.here) for item in deviations[1:]] == [
        ("runtime", "--runtime=nvidia", "(none)"),
        ("domainname", "--domainname a", "(none)"),
        ("link", "--link=x", "(none)"),
    ]


def test_a_limit_of_cis_stays() -> None:
    assert _adapted(["--pids-limit=9"])[0] == ["--pids-limit=9", "--http-proxy=false"]


def test_init_is_the_program_that_this_host_has() -> None:
    tini = init_options(lambda _: False, lambda name: f"/usr/bin/{name}" if name == "tini" else None)
    assert _adapted(["--init"], tini)[0] == ["--init", "--init-path", "/usr/bin/tini", *DEFAULTS]
    own = init_options(lambda path: path == OWN_INIT, lambda name: f"/usr/bin/{name}")
    assert _adapted(["--init"], own)[0] == ["--init", *DEFAULTS]


IMAGES = [
    ("slimerl/slime", "docker.io/slimerl/slime"),
    ("slimerl/slime:latest", "docker.io/slimerl/slime:latest"),
    ("slimerl/slime@sha256:0", "docker.io/slimerl/slime@sha256:0"),
    ("debian:12", "docker.io/library/debian:12"),
    ("docker.io/slimerl/slime", "docker.io/slimerl/slime"),
    ("nvcr.io/nvidia/pytorch:24", "nvcr.io/nvidia/pytorch:24"),
    ("registry:5000/slime", "registry:5000/slime"),
    ("localhost/slime", "localhost/slime"),
]


@pytest.mark.parametrize(("image", "full"), IMAGES, ids=[image for image, _ in IMAGES])
def test_a_name_without_registry_is_docker_hubs(image: str, full: str) -> None:
    assert qualified_image(image) == full
