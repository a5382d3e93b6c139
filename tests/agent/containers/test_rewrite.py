"""Each rule changes what it names in CI's `docker run`, leaves the rest, and is named as a deviation."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.agent.containers.docker_argv import DockerArgvError, parse_run, render
from ci_tasks.agent.containers.rewrite import client_environment, qualified_image, rewrite, rewrite_other
from ci_tasks.agent.containers.rules import ContainerRules
from ci_tasks.agent.records import Deviation, DockerInvocation


def _rewritten(argv: list[str], number: int = 1, **rules: Any) -> tuple[list[str], list[Deviation]]:
    run, deviations = rewrite(parse_run(["run", *argv]), decode(ContainerRules, rules, where="rules"), number)
    return render(run)[1:], deviations


def _whats(deviations: list[Deviation]) -> list[str]:
    return [deviation.what for deviation in deviations]


MOUNTS = {"/mnt/x": "/data/x", "/mnt/x/deep": "/fast", "/mnt/sp ace": '/d\'s "q"', "/c,d": "/e,f"}
SOURCES = [
    ("/mnt/x", "/data/x"),
    ("/mnt/x/./a/../b", "/data/x/b"),
    ("/mnt/x/deep/er", "/fast/er"),  # the longest rule wins
    ("/mnt/x2", None),  # a rule ends where a name ends
    ("/mnt/x/../y", None),
    ("/mnt/sp ace/it's", "/d's \"q\"/it's"),
    ("/c,d/g", "/e,f/g"),
]


@pytest.mark.parametrize(("source", "here"), SOURCES, ids=[repr(source) for source, _ in SOURCES])
@pytest.mark.parametrize("spelling", ["-v", "--mount"])
def test_a_mount_source_moves_by_the_longest_rule_that_holds_it(spelling: str, source: str, here: str | None) -> None:
    mount = f'type=bind,"src={source}",dst=/dst,readonly'.replace('"q"', '""q""')
    given = ["-v", f"{source}:/dst:ro"] if spelling == "-v" else ["--mount", mount]
    got, deviations = _rewritten(["--init", *given, "img"], mounts=MOUNTS)
    assert got == ["--init", *(["-v", f"{here}:/dst:ro"] if here else given), "img"]
    named = Deviation(f"mount {source}", source, here or "", "hosts.yaml mounts")
    assert deviations == ([named] if here else [])


PULLS = [
    (["--pull=always"], "never", ["--pull", "never"], ("always", "never")),
    ([], "always", ["--pull", "always"], ("missing (docker's default)", "always")),
    (["--pull=always"], "always", ["--pull=always"], None),
    (["--pull=always"], None, ["--pull=always"], None),
]


@pytest.mark.parametrize(("argv", "pull", "expected", "change"), PULLS)
def test_the_pull_policy_is_the_hosts_where_it_has_one(
    argv: list[str], pull: str | None, expected: list[str], change: tuple[str, str] | None
) -> None:
    got, deviations = _rewritten(["--init", *argv, "img"], pull=pull)
    assert got == ["--init", *expected, "img"]
    assert [(d.what, d.ci, d.here) for d in deviations] == ([("pull", *change)] if change else [])


def test_each_harmless_addition_is_one_deviation_with_a_reason() -> None:
    got, deviations = _rewritten(
        ["--rm", "-d", "img", "ls"],
        name="n",
        labels={"a": "1", "b": "x y"},
        env={"A": "1", "B": "2"},
        volumes=["/run dir", "/o"],
    )
    assert got == [
        *["-d", "--name", "n", "--label", "a=1", "--label", "b=x y", "--init", "-e", "A", "-e", "B"],
        *["-v", "/run dir:/run dir", "-v", "/o:/o", "img", "ls"],
    ]
    assert _whats(deviations) == ["name", "rm", "labels", "init", "env", "volumes"]
    assert all(all(vars(deviation).values()) for deviation in deviations)


@pytest.mark.parametrize("argv", [["--network", "host"], ["--net=name=host"], ["--network", "none"], []])
def test_the_hosts_own_network_becomes_a_bridge_where_the_host_says_so(argv: list[str]) -> None:
    got, deviations = _rewritten(["--init", *argv, "img", "--network=host"], network="bridge")
    is_host = "host" in " ".join(argv)
    assert got == ["--init", *(["--network", "bridge"] if is_host else argv), "img", "--network=host"]
    assert [(d.ci, d.here) for d in deviations] == ([("--network host", "--network bridge")] if is_host else [])
    assert _rewritten(["--init", *argv, "img"]) == (["--init", *argv, "img"], [])


def test_a_volume_whose_place_ci_already_fills_is_not_added() -> None:
    assert _rewritten(["--init", "-v", "/a:/b/", "img"], volumes=["/b"]) == (["--init", "-v", "/a:/b/", "img"], [])


def test_no_secret_stands_in_the_argv_or_in_a_deviation() -> None:
    argv = ["--init", "-e", "HF_TOKEN=hf_s3cret", "--env=WANDB_API_KEY=k3y", "-itePASSWORD=pw0", "-e", "N=1", "img"]
    got, deviations = _rewritten(argv, env={"EXTRA_TOKEN": "t0k"})
    assert got == [
        *["--init", "-e", "HF_TOKEN", "-e", "WANDB_API_KEY", "-i", "-t", "-e", "PASSWORD"],
        *["-e", "N=1", "-e", "EXTRA_TOKEN", "img"],
    ]
    for secret in ("hf_s3cret", "k3y", "pw0", "t0k"):
        assert secret not in repr((got, deviations))
        assert secret not in repr(ContainerRules(env={"EXTRA_TOKEN": "t0k"}))
    values = client_environment(parse_run(["run", *argv]), ContainerRules(env={"EXTRA_TOKEN": "t0k"}))
    assert values == {"HF_TOKEN": "hf_s3cret", "WANDB_API_KEY": "k3y", "PASSWORD": "pw0", "EXTRA_TOKEN": "t0k"}


def test_a_secret_under_any_name_stays_out_of_the_argv_too() -> None:
    rules = ContainerRules(secrets=("correct-horse",))
    run = parse_run(["run", "-e", "URL=https://me:correct-horse@host", "-e", "N=1", "img"])
    here, deviations = rewrite(run, rules)
    assert "URL" in render(here) and "correct-horse" not in repr((here, deviations, rules))
    assert client_environment(run, rules) == {"URL": "https://me:correct-horse@host"}


# -- other commands --------------------------------------------------------------------------------------------------

BOX = [
    DockerInvocation(("run", "--name=box", "image"), (), (), "ci-tasks-1", "docker"),
    DockerInvocation(("run", "--name=box", "image"), (), (), "ci-tasks-2", "docker"),  # the last one is meant
    DockerInvocation(("run", "image"), (), (), "ci-tasks-3", "docker"),
    DockerInvocation(("pull", "image"), (), (), None, "docker"),
]
OTHERS = [
    ("exec -t box bash -c true", "exec -t ci-tasks-2 bash -c true"),
    ("exec -e A=box box echo box", "exec -e A=box ci-tasks-2 echo box"),
    ("cp box:/a/box.txt out", "cp ci-tasks-2:/a/box.txt out"),
    ("container rm -f box", "stop -t 0 ci-tasks-2"),
    ("rm -f box other", "rm -f ci-tasks-2 other"),
    ("build -t boxes .", "build -t boxes ."),
]


@pytest.mark.parametrize(("ci", "here"), OTHERS)
def test_a_command_finds_the_container_under_its_name_here(ci: str, here: str) -> None:
    assert rewrite_other(ci.split(), BOX)[0] == here.split()


@pytest.mark.parametrize("ci", ["create image", "container create image", "compose up", "stack deploy x"])
def test_a_command_that_starts_what_could_not_be_found_never_reaches_docker(ci: str) -> None:
    with pytest.raises(DockerArgvError, match="could not find the containers that it starts"):
        rewrite_other(ci.split(), BOX)


# -- podman ----------------------------------------------------------------------------------------------------------

PODMAN: list[tuple[list[str], list[str], list[str]]] = [
    (["--ipc=host", "--shm-size=32g"], ["--ipc=host"], ["shm-size"]),
    (["--memory-swap=0"], [], ["memory-swap"]),
    (["--gpus", "2"], ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"], ["gpus"]),
    (['--gpus="device=3,5"'], ["--device", "nvidia.com/gpu=3", "--device", "nvidia.com/gpu=5"], ["gpus"]),
]


@pytest.mark.parametrize(("argv", "expected", "lost"), PODMAN, ids=[" ".join(argv) for argv, _, _ in PODMAN])
def test_what_podman_refuses_is_put_in_its_words_and_it_gets_dockers_defaults(
    argv: list[str], expected: list[str], lost: list[str]
) -> None:
    run, deviations = rewrite(parse_run(["run", "--privileged", *argv, "img"]), ContainerRules("podman"))
    defaults = ["--init", "--http-proxy=false", "--pids-limit", "-1"]
    assert render(run) == ["run", "--privileged", *expected, *defaults, "img"]
    assert _whats(deviations) == ["runtime", *lost]


def test_podman_keeps_a_limit_of_cis_and_says_where_the_host_has_no_init() -> None:
    run, deviations = rewrite(parse_run(["run", "--pids-limit=9", "--init", "img"]), ContainerRules("podman"), init=())
    assert render(run) == ["run", "--pids-limit=9", "--http-proxy=false", "img"]
    assert _whats(deviations) == ["runtime", "init", "capabilities"]


def test_a_name_without_registry_is_docker_hubs() -> None:
    assert qualified_image("slimerl/slime@sha256:0") == "docker.io/slimerl/slime@sha256:0"
    assert qualified_image("debian:12") == "docker.io/library/debian:12"
    for image in ("docker.io/slimerl/slime", "registry:5000/slime", "localhost/slime"):
        assert qualified_image(image) == image
