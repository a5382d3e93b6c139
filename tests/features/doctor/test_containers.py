"""Container runtimes as they answer, refuse and hang; GPUs through them; images."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.containers import containers

IMAGE = "slimerl/slime:latest"
ABSENT = Answer(None, "", "docker: No such file or directory")
TIMED_OUT = Answer(None, "", "no answer from x within 20 s")
WORKS = {"container": Answer(0, "27.1.1")}


@pytest.fixture
def info(data: Any) -> Any:
    return lambda name: Answer(0, data(f"{name}.json"))


RUNTIMES = [
    ("docker", "docker-info", "ok", "27.1.1"),
    ("docker", "docker-info-rootless", "warning", "27.1.1, rootless"),
    ("podman", "podman-info", "ok", "4.3.1"),
]


@pytest.mark.parametrize(("runtime", "recorded", "status", "text"), RUNTIMES)
def test_a_runtime_says_who_it_is(read: Any, info: Any, runtime: str, recorded: str, status: str, text: str) -> None:
    (result,) = read(containers(HostSpec("h", runtime=runtime, gpus=0), ()), {**WORKS, "info": info(recorded)})
    assert (result.topic, result.status, result.text.startswith(text)) == (runtime, status, True), result


DEAD_RUNTIMES = [
    ("docker", ABSENT, "install it"),
    ("docker", TIMED_OUT, "systemctl restart docker"),
    ("podman", TIMED_OUT, "systemctl restart podman"),
    ("docker", Answer(1, "", "permission denied while connecting to the docker socket"), "usermod -aG docker"),
    ("docker", Answer(1, "", "Cannot connect to the Docker daemon at unix:///x. Is it up?"), "enable --now docker"),
]


@pytest.mark.parametrize(("runtime", "answer", "step"), DEAD_RUNTIMES)
def test_a_runtime_that_does_not_answer_well_is_one_fault(read: Any, runtime: str, answer: Answer, step: str) -> None:
    [result] = read(containers(HostSpec("h", runtime=runtime, gpus=0), (IMAGE,)), {"container": answer})
    assert (result.status, step in result.next_step) == ("fault", True), result


TOOLKIT = Answer(0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a\n")
CDI = Answer(0, 'time="2026" level=info msg="Found 2 CDI devices"\nnvidia.com/gpu=0\nnvidia.com/gpu=all\n')
NOTHING = Answer(0, "time=2026 level=info msg=Found 0 CDI devices\n")


TOOLKITS = [
    ("docker", "docker-info", TOOLKIT, NOTHING, "ok", ""),
    ("docker", "docker-info-rootless", TOOLKIT, NOTHING, "warning", "runtime configure --runtime=docker"),
    ("docker", "docker-info-rootless", ABSENT, ABSENT, "fault", "install nvidia-container-toolkit"),
    ("podman", "podman-info", TOOLKIT, CDI, "ok", ""),
    ("podman", "podman-info", TOOLKIT, NOTHING, "fault", "nvidia-ctk cdi generate"),
    ("podman", "podman-info", ABSENT, ABSENT, "fault", "install nvidia-container-toolkit"),
]


@pytest.mark.parametrize(("runtime", "recorded", "toolkit", "cdi", "status", "step"), TOOLKITS)
def test_whether_gpus_pass_into_containers(
    read: Any, info: Any, data: Any, runtime: str, recorded: str, toolkit: Answer, cdi: Answer, status: str, step: str
) -> None:
    host, answers = HostSpec("h", runtime=runtime), {**WORKS, "info": info(recorded), "nvidia-ctk": toolkit, "cdi": cdi}
    for gpus, expected in ((Answer(0, data("smi-gpus-h100x8.txt")), [(status, True)]), (Answer(6, "No devices"), [])):
        results = [
            result for result in read(containers(host, ()), {**answers, "gpus": gpus}) if "NVIDIA" in result.topic
        ]
        assert [(result.status, step in result.next_step) for result in results] == expected


IMAGES = [
    ("always", "docker-image", "", "ok", "sha256:bbbb"),
    ("never", "", "Error: No such image: x\n", "fault", "missing, and `pull: never`"),
    ("missing", "", "Error response from daemon: No such image: x\n", "ok", "not pulled yet"),
    (None, "", "Error response from daemon: disk I/O error\n", "unknown", "disk I/O error"),
]


@pytest.mark.parametrize(("pull", "recorded", "err", "status", "text"), IMAGES)
def test_an_image_is_reported_with_its_digest_or_how_it_will_come(
    read: Any, info: Any, pull: str | None, recorded: str, err: str, status: str, text: str
) -> None:
    image = info(recorded) if recorded else Answer(1, "[]\n", err)
    check = containers(HostSpec("h", gpus=0, pull=pull), (IMAGE, IMAGE))
    results = [r for r in read(check, {**WORKS, "info": info("docker-info"), IMAGE: image}) if r.topic == "image"]
    assert [(r.status, r.text.startswith(f"{IMAGE}: ") and text in r.text) for r in results] == [(status, True)]


BLOCKED, PYXIS = "rows in containers are blocked", "--container-image=X\n"
DAEMONLESS = [
    ("apptainer", Answer(0, "apptainer version 1.3.4-1.el9\n"), "ok", "apptainer version 1.3.4-1.el9"),
    ("apptainer", ABSENT, "fault", f"{BLOCKED}: apptainer (not on PATH)"),
    ("pyxis", Answer(0, f"{PYXIS}--container-env=NAME\n"), "ok", "srun has its options"),
    ("pyxis", Answer(0, PYXIS), "fault", "older than 0.15"),
    ("pyxis", Answer(0, "Usage: srun\n"), "fault", f"{BLOCKED}: pyxis (srun has no --container-image)"),
    ("pyxis", ABSENT, "fault", f"{BLOCKED}: pyxis (no srun on PATH)"),
]


@pytest.mark.parametrize(("runtime", "answer", "status", "text"), DAEMONLESS)
def test_apptainer_and_pyxis(read: Any, runtime: str, answer: Answer, status: str, text: str) -> None:
    host = HostSpec("h", kind="slurm" if runtime == "pyxis" else "ssh", address="a", runtime=runtime)
    [result] = read(containers(host, ()), {"container": answer})
    assert (result.topic, result.status, result.text.startswith(text)) == (runtime, status, True), result
