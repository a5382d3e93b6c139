"""Container runtimes as they answer, refuse and hang; GPUs through them; images."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import containers

IMAGE = "slimerl/slime:latest"
ABSENT, TIMED_OUT = (
    Answer(None, "", "docker: No such file or directory"),
    Answer(None, "", "no answer from x within 20 s"),
)


@pytest.fixture
def info(data: Any) -> Any:
    return lambda name: Answer(0, data(f"{name}.json"))


@pytest.mark.parametrize(
    ("runtime", "recorded", "init", "expected"),
    [
        ("docker", "docker-info", ABSENT, [("docker", "ok", "27.1.1")]),
        ("docker", "docker-info-rootless", ABSENT, [("docker", "warning", "27.1.1, rootless")]),
        ("docker", "docker-info-down", ABSENT, [("docker", "fault", "Cannot connect")]),
        ("podman", "podman-info", Answer(0, "/usr/bin/tini\n"),
         [("podman", "ok", "4"), ("init", "ok", "/usr/bin/tini")]),
        ("podman", "podman-info", Answer(1), [("podman", "ok", "4.3.1"), ("init", "warning", "no init program")]),
    ],
)  # fmt: skip
def test_a_runtime_says_who_it_is(
    read: Any, info: Any, runtime: str, recorded: str, init: Answer, expected: list[tuple[str, str, str]]
) -> None:
    results = read(
        containers.facts(HostSpec("h", runtime=runtime, gpus=0), ()), {"runtime": info(recorded), "init": init}
    )
    assert [(result.topic, result.status) for result in results] == [each[:2] for each in expected]
    assert all(result.text.startswith(text) for result, (*_, text) in zip(results, expected, strict=True)), results


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (ABSENT, "install docker"),
        (TIMED_OUT, "systemctl restart docker"),
        (Answer(1, "{}\n", "Cannot connect to the Docker daemon at unix:///x. Is it up?\n"), "systemctl enable --now"),
    ],
)
def test_a_runtime_that_does_not_answer_well_is_a_fault(read: Any, answer: Answer, step: str) -> None:
    [result] = read(containers.facts(HostSpec("h", gpus=0), (IMAGE,)), {"runtime": answer})
    assert (result.status, step in result.next_step) == ("fault", True), result


TOOLKIT = Answer(0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a\n")
CDI = Answer(0, 'time="2026" level=info msg="Found 2 CDI devices"\nnvidia.com/gpu=0\nnvidia.com/gpu=all\n')
NOTHING = Answer(0, "time=2026 level=info msg=Found 0 CDI devices\n")


@pytest.mark.parametrize(
    ("runtime", "recorded", "toolkit", "cdi", "status", "step"),
    [
        ("docker", "docker-info", TOOLKIT, NOTHING, "ok", ""),
        ("docker", "docker-info-rootless", TOOLKIT, NOTHING, "warning", "runtime configure --runtime=docker"),
        ("docker", "docker-info-rootless", ABSENT, ABSENT, "fault", "install nvidia-container-toolkit"),
        ("podman", "podman-info", TOOLKIT, CDI, "ok", ""),
        ("podman", "podman-info", TOOLKIT, NOTHING, "fault", "nvidia-ctk cdi generate"),
        ("podman", "podman-info", ABSENT, ABSENT, "fault", "install nvidia-container-toolkit"),
    ],
)
def test_whether_gpus_pass_into_containers(
    read: Any, info: Any, data: Any, runtime: str, recorded: str, toolkit: Answer, cdi: Answer, status: str, step: str
) -> None:
    facts = containers.facts(HostSpec("h", runtime=runtime), ())
    answers = {"runtime": info(recorded), "nvidia-ctk": toolkit, "cdi": cdi}
    for gpus, expected in ((Answer(0, data("smi-gpus-h100x8.txt")), [(status, True)]), (Answer(6, "No devices"), [])):
        results = [result for result in read(facts, {**answers, "gpus": gpus}) if "NVIDIA" in result.topic]
        assert [(result.status, step in result.next_step) for result in results] == expected


@pytest.mark.parametrize(
    ("pull", "recorded", "err", "status", "text"),
    [
        ("always", "docker-image", "", "ok", "sha256:bbbb, 31.4 GB; pulled anew at every run"),
        (None, "docker-image", "", "ok", "sha256:bbbb, 31.4 GB; CI's own pull policy"),
        ("never", "", "Error: No such image: x\n", "fault", "not here, and `pull: never`"),
        ("missing", "", "Error response from daemon: No such image: x\n", "ok", "not here yet"),
        (None, "", "Error response from daemon: disk I/O error\n", "unknown", "disk I/O error"),
    ],
)
def test_an_image_is_reported_with_its_digest_or_how_it_will_come(
    read: Any, info: Any, pull: str | None, recorded: str, err: str, status: str, text: str
) -> None:
    image = info(recorded) if recorded else Answer(1, "[]\n", err)
    facts = containers.facts(HostSpec("h", gpus=0, pull=pull), (IMAGE, IMAGE))
    results = [r for r in read(facts, {"runtime": info("docker-info"), f"image {IMAGE}": image}) if r.topic == "image"]
    assert [(r.status, r.text.startswith(f"{IMAGE}: ") and text in r.text) for r in results] == [(status, True)]


def apptainer(version: str) -> Answer:
    return Answer(0, f"apptainer version {version}\n")


NO_NAMESPACE = Answer(1, "", "unshare: unshare failed: Operation not permitted")
# A login node says little of the others.
APPTAINER = [
    ("ssh", apptainer("1.3.4-1.el9"), Answer(0), "ok", "apptainer 1.3.4-1.el9"),
    ("ssh", apptainer("1.3.4"), NO_NAMESPACE, "warning", "apptainer 1.3.4, and no user namespaces"),
    ("ssh", apptainer("1.0.3"), Answer(0), "fault", "apptainer 1.0.3 is too old"),
    ("ssh", ABSENT, Answer(0), "fault", "apptainer: not on PATH"),
    ("slurm", ABSENT, NO_NAMESPACE, "unknown", "apptainer: not on the login node"),
]
PYXIS = [
    (Answer(0, "--container-image=X\n--container-env=NAME\n"), "ok", "pyxis: srun has its options"),
    (Answer(0, "--container-image=X\n"), "fault", "pyxis: older than 0.15"),
    (Answer(0, "Usage: srun\n"), "fault", "pyxis: srun has no --container-image"),
    (ABSENT, "fault", "pyxis: no srun on PATH"),
]
DAEMONLESS = [
    *(("apptainer", kind, {"apptainer": version, "user namespace": namespace}, status, text)
      for kind, version, namespace, status, text in APPTAINER),
    *(("pyxis", "slurm", {"srun": answer}, status, text) for answer, status, text in PYXIS),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "kind", "answers", "status", "text"), DAEMONLESS)
def test_apptainer_and_pyxis(
    read: Any, runtime: str, kind: str, answers: dict[str, Answer], status: str, text: str
) -> None:
    [result] = read(containers.facts(HostSpec("h", kind=kind, address="a", runtime=runtime), ()), answers)
    assert (result.topic, result.status, result.text.startswith(text)) == ("runtime", status, True), result
    assert bool(result.next_step) is (status in ("fault", "warning"))
