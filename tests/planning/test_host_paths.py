"""Paths that tests name → where they lie on a host."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.config import HostSpec
from ci_tasks.planning.containers import HostPath, container_of, environment_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.workflow.context import Resolver
from ci_tasks.workflow.model import Container, Job, Step

INLINE = """
docker run --pull=always --rm \\
  -e TEST_FILE="x.py" -e HF_HOME=/data/slime_ci/hf \\
  -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" \\
  -v /mnt/nvme/ci:/data/slime_ci \\
  -v /mnt/nvme/ci/models:/root/models \\
  --mount type=bind,source=$DISK/datasets,target=/root/datasets \\
  -v cache:/root/.cache \\
  image:latest bash -c 'python tests/x.py'
"""
ENV = {"DISK": "/mnt/nvme"}


def container(job: Job) -> DockerRun | None:
    resolve = Resolver("w.yml", job.id, 1, {"env": ENV, "github": {"workspace": "/w"}, "matrix": {}, "runner": {}})
    return container_of(job, resolve, plan_steps(job, resolve, ()))


def job(script: str = "python tests/x.py", **more: Any) -> Job:
    return Job("j", 1, steps=(Step("Execute", 1, run=script),), **more)


@pytest.mark.parametrize(
    ("path", "mounts", "expected"),
    [
        ("/root/models/Qwen3-4B", {}, "/mnt/nvme/ci/models/Qwen3-4B"),
        ("/root/models", {}, "/mnt/nvme/ci/models"),
        ("/root//models/../models/q/", {}, "/mnt/nvme/ci/models/q"),
        ("/data/slime_ci/x", {}, "/mnt/nvme/ci/x"),
        ("/root/datasets/d", {}, "/mnt/nvme/datasets/d"),
        ("/root/models/q", {"/mnt/nvme/ci": "/big"}, "/big/models/q"),
        ("/root/models/q", {"/mnt/nvme/ci": "/big", "/mnt/nvme/ci/models": "/other"}, "/other/q"),
        ("~/models/q", {}, "/mnt/nvme/ci/models/q"),
        ("/root/modelsX/q", {}, None),
        ("/root/q", {}, None),
        ("models/q", {}, None),
        ("/root/.cache/huggingface/hub", {}, None),
        ("$GITHUB_WORKSPACE/q", {}, None),
    ],
)
def test_a_path_in_the_container_is_found_through_its_mounts(
    path: str, mounts: dict[str, str], expected: str | None
) -> None:
    host_path = place(path, container(job(INLINE)), HostSpec("box", mounts=mounts), ENV)
    assert host_path.path == expected
    assert bool(host_path.why) == (expected is None)


def test_a_jobs_own_container_mounts_by_options_and_volumes() -> None:
    run = container(job(container=Container("image", "-v /data/models:/root/models", volumes=("/d:/root/datasets",))))
    host = HostSpec("box")
    assert place("/root/models/q", run, host, {}).path == "/data/models/q"
    assert place("/root/datasets/q", run, host, {}).path == "/d/q"


def test_of_mounts_within_mounts_the_innermost_holds_it() -> None:
    run = container(job(container=Container("image", "-v /outer:/root -v /inner:/root/models -v /later:/root/mod")))
    assert place("/root/models/q", run, HostSpec("box"), {}).path == "/inner/q"
    assert place("/root/other", run, HostSpec("box"), {}).path == "/outer/other"


def test_without_a_container_a_path_is_the_hosts_own() -> None:
    assert place("/root/models/q", container(job()), HostSpec("box"), {}) == HostPath("/root/models/q")
    inside = HostSpec("box", runtime="none")  # a person who is inside the image already
    assert place("/root/models/q", container(job(INLINE)), inside, {}) == HostPath("/root/models/q")
    assert place("~/.cache/huggingface/hub", None, inside, {}) == HostPath("~/.cache/huggingface/hub")


def test_what_the_container_sets_is_in_the_tests_environment() -> None:
    run = container(job(INLINE))
    assert environment_of(run, HostSpec("box", env={"A": "1"}), {"B": "2"}) == {
        "B": "2",
        "TEST_FILE": "x.py",
        "HF_HOME": "/data/slime_ci/hf",
    }
    assert environment_of(None, HostSpec("box", env={"A": "1"}), {"B": "2"}) == {"A": "1", "B": "2"}
