"""docker and podman as they answer, refuse and hang; GPUs through them; images."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import containers
from ci_tasks.features.doctor.host_fact import HostFact

IMAGE = "slimerl/slime:latest"
DENIED = 'permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get "http://x"'
ME = QueryAnswer(0, "uid=1000(me) gid=1000(me) groups=1000(me),27(sudo)\n")


@pytest.fixture
def info(data: Any) -> Any:
    return lambda name: QueryAnswer(0, data(name))


@pytest.mark.parametrize(
    ("runtime", "recorded", "status", "text"),
    [
        ("docker", "docker-info.json", "ok", "27.1.1"),
        ("docker", "docker-info-rootless.json", "warning", "27.1.1, rootless"),
        ("docker", "docker-info-down.json", "fault", "Cannot connect"),
        ("podman", "podman-info.json", "ok", "4.3.1"),
    ],
)
def test_a_runtime_says_who_it_is(read: Any, info: Any, runtime: str, recorded: str, status: str, text: str) -> None:
    answers = {"runtime": info(recorded), "init": QueryAnswer(None)}
    [result] = read(containers.facts(HostSpec("h", runtime=runtime, gpus=0), ()), answers)
    assert (result.topic, result.status, result.text.startswith(text)) == (runtime, status, True)


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (QueryAnswer(0, "/usr/bin/tini\n"), "ok", "/usr/bin/tini"),
        (QueryAnswer(1), "warning", "no init program"),
    ],
)
def test_whether_podman_has_an_init(read: Any, info: Any, answer: QueryAnswer, status: str, text: str) -> None:
    answers = {"runtime": info("podman-info.json"), "init": answer}
    results = read(containers.facts(HostSpec("h", runtime="podman", gpus=0), ()), answers)
    (result,) = [result for result in results if result.topic == "init"]
    assert (result.status, result.text.startswith(text)) == (status, True)


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (QueryAnswer(None, "", "docker: No such file or directory"), "install docker"),
        (QueryAnswer(127, "", "env: 'docker': No such file or directory"), "install docker"),
        (QueryAnswer(None, "", "no answer from docker within 20 s"), "systemctl restart docker"),
        (
            QueryAnswer(1, "{}\n", "Cannot connect to the Docker daemon at unix:///x. Is it up?\n"),
            "systemctl enable --now",
        ),
        (QueryAnswer(1, "", "something else\n"), "docker info"),
        (QueryAnswer(0, "not JSON\n"), "docker info"),
    ],
)
def test_a_runtime_that_does_not_answer_well_is_a_fault(read: Any, answer: QueryAnswer, step: str) -> None:
    [result] = read(containers.facts(HostSpec("h", gpus=0), ()), {"runtime": answer})
    assert (result.status, step in result.next_step) == ("fault", True), result


@pytest.mark.parametrize(
    ("socket", "user", "step"),
    [
        ("root docker 660\n", ME.out, "sudo usermod -aG docker me"),
        ("root docker 600\n", "uid=1000(me) gid=1000(me) groups=1000(me),998(docker)\n", "chmod g+rw"),
        ("root root 660\n", ME.out, "groupadd docker"),
        ("", ME.out, "groupadd docker"),
    ],
)
def test_a_closed_socket_names_the_group_to_join(read: Any, socket: str, user: str, step: str) -> None:
    answers = {"runtime": QueryAnswer(1, "", DENIED), "socket": QueryAnswer(0, socket), "user": QueryAnswer(0, user)}
    [result] = read(containers.facts(HostSpec("h", gpus=0), ()), answers)
    assert (result.status, step in result.next_step, "me may not use" in result.text) == ("fault", True, True)


def test_the_socket_of_hosts_yaml_is_queried() -> None:
    host = HostSpec("h", gpus=0, env={"DOCKER_HOST": "unix:///run/user/7/docker.sock"})
    [fact] = containers.facts(host, ())
    assert fact.queries["socket"][-1] == "/run/user/7/docker.sock"


def test_unneeded_queries_are_not_run() -> None:
    assert containers.facts(HostSpec("h", runtime="none"), (IMAGE,)) == []


TOOLKIT = QueryAnswer(0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a\n")
CDI = QueryAnswer(0, 'time="2026" level=info msg="Found 2 CDI devices"\nnvidia.com/gpu=0\nnvidia.com/gpu=all\n')
ABSENT = QueryAnswer(None, "", "nvidia-ctk: No such file or directory")
NOTHING = QueryAnswer(0, "time=2026 level=info msg=Found 0 CDI devices\n")


@pytest.mark.parametrize(
    ("runtime", "recorded", "toolkit", "cdi", "status", "step"),
    [
        ("docker", "docker-info.json", TOOLKIT, NOTHING, "ok", ""),
        ("docker", "docker-info.json", ABSENT, ABSENT, "ok", ""),
        ("docker", "docker-info-29-cdi.json", ABSENT, ABSENT, "ok", ""),
        ("docker", "docker-info-rootless.json", TOOLKIT, NOTHING, "warning", "runtime configure --runtime=docker"),
        ("docker", "docker-info-rootless.json", ABSENT, ABSENT, "fault", "install nvidia-container-toolkit"),
        ("podman", "podman-info.json", TOOLKIT, CDI, "ok", ""),
        ("podman", "podman-info.json", TOOLKIT, NOTHING, "fault", "nvidia-ctk cdi generate"),
        ("podman", "podman-info.json", ABSENT, ABSENT, "fault", "install nvidia-container-toolkit"),
    ],
)
def test_whether_gpus_pass_into_containers(
    read: Any,
    info: Any,
    data: Any,
    runtime: str,
    recorded: str,
    toolkit: QueryAnswer,
    cdi: QueryAnswer,
    status: str,
    step: str,
) -> None:
    gpus = QueryAnswer(0, data("smi-gpus-h100x8.txt"))
    answers = {"runtime": info(recorded), "nvidia-ctk": toolkit, "cdi": cdi, "gpus": gpus}
    results = [f for f in read(containers.facts(HostSpec("h", runtime=runtime), ()), answers) if "NVIDIA" in f.topic]
    assert [(f.status, step in f.next_step) for f in results] == [(status, True)]
    without = read(
        containers.facts(HostSpec("h", runtime=runtime), ()), {**answers, "gpus": QueryAnswer(6, "No devices")}
    )
    assert not [f for f in without if "NVIDIA" in f.topic]


@pytest.mark.parametrize(
    ("pull", "recorded", "err", "status", "text"),
    [
        ("never", "docker-image.json", "", "ok", "sha256:bbbb, 31.4 GB"),
        ("always", "docker-image.json", "", "ok", "sha256:bbbb, 31.4 GB; pulled anew at every run"),
        (None, "docker-image.json", "", "ok", "sha256:bbbb, 31.4 GB; CI's own pull policy"),
        ("missing", "podman-image.json", "", "ok", "cccc, which no registry has, 2.0 GB"),
        ("never", "", "Error: No such image: x\n", "fault", "not here, and `pull: never`"),
        ("missing", "", "Error response from daemon: No such image: x\n", "ok", "not here yet"),
        (None, "", "Error: inspecting object: x: image not known\n", "ok", "not here yet"),
        (None, "", "Error response from daemon: disk I/O error\n", "unknown", "disk I/O error"),
    ],
)
def test_an_image_is_reported_with_its_digest_or_how_it_will_come(
    read: Any, info: Any, data: Any, pull: str | None, recorded: str, err: str, status: str, text: str
) -> None:
    answer = QueryAnswer(0, data(recorded)) if recorded else QueryAnswer(1, "[]\n", err)
    facts = containers.facts(HostSpec("h", gpus=0, pull=pull), (IMAGE, IMAGE))
    results = [
        f for f in read(facts, {"runtime": info("docker-info.json"), f"image {IMAGE}": answer}) if f.topic == "image"
    ]
    assert [(f.status, f.text.startswith(f"{IMAGE}: ") and text in f.text) for f in results] == [(status, True)]


def test_images_are_not_reported_where_the_runtime_fails(read: Any) -> None:
    results = read(containers.facts(HostSpec("h", gpus=0), (IMAGE,)), {"runtime": QueryAnswer(1, "", DENIED)})
    assert [f.topic for f in results] == ["docker"]


@pytest.mark.parametrize(
    ("recorded", "env", "path"),
    [
        ("docker-info.json", {}, "/mnt/docker"),
        ("docker-info-29-cdi.json", {}, "/var/lib/containerd"),
        ("podman-info.json", {}, "/var/lib/containers/storage"),
        ("docker-info.json", {"DOCKER_HOST": "ssh://me@other"}, None),
        ("docker-info-down.json", {}, None),
    ],
)
def test_the_image_store_is_where_the_runtime_says(
    info: Any, recorded: str, env: dict[str, str], path: str | None
) -> None:
    facts = containers.store_facts(HostSpec("h", env=env), (), {"runtime": info(recorded)})
    assert [fact.queries["store"][-1] for fact in facts] == ([path] if path else [])


@pytest.mark.parametrize(("code", "status"), [(0, "ok"), (1, "warning")])
def test_an_image_that_is_still_to_come_needs_disk_space(read: Any, info: Any, code: int, status: str) -> None:
    answers = {"runtime": info("docker-info.json"), f"image {IMAGE}": QueryAnswer(code, "{}")}
    facts: list[HostFact] = containers.store_facts(HostSpec("h"), (IMAGE,), answers)
    there = '{"exists": true, "free": 40000000000, "total": 90000000000, "files": 0}'
    assert [f.status for f in read(facts, {"store": QueryAnswer(0, there)})] == [status]
