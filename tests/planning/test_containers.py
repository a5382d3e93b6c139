"""What the runner is told about containers and GPU locks, what a row needs for itself, and where its paths lie."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.docker_argv import DockerRun
from ci_tasks.config import HostSpec
from ci_tasks.planning import containers
from ci_tasks.planning.containers import RAY_ON_HOST, HostPath, container_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.workflow.context import Resolver
from ci_tasks.workflow.model import Container, Job, Row, Step
from tests.parts.cases import cases

CASES = cases("planning/data/containers.yaml")

ROW = Row("ckpt", "e2e-test-ckpt", None, "r", "tests/t.py", "", 4, "i", {}, "self-hosted", 60)
BOX = HostSpec("box", kind="ssh", address="box")
SIM = HostSpec("sim", runtime="none", gpus=8, simulate=True)
LOCKED = "docker run i bash -c 'python tests/ci/gpu_lock_exec.py --count 4 -- python tests/t.py'"


@pytest.mark.parametrize(
    ("host", "texts", "by", "pattern", "simulated"),
    [
        # the checkout's own script takes the locks where a step calls it
        (BOX, ["pip install -e .", LOCKED], "job", "/dev/shm/custom_gpu_lock_{gpu_id}.lock", None),
        # the runner takes them where no step does
        (BOX, ["python tests/t.py"], "agent", "/dev/shm/custom_gpu_lock_{gpu_id}.lock", None),
        # simulated GPUs have locks of their own
        (SIM, [LOCKED], "job", "/locks/custom_gpu_lock_{gpu_id}.lock", 8),
    ],
)
def test_who_takes_the_locks(host: HostSpec, texts: list[str], by: str, pattern: str, simulated: int | None) -> None:
    locks = containers.gpu_locks(ROW, host, "/locks", texts)
    assert locks is not None
    assert (locks.by, locks.count, locks.total, locks.pattern, locks.simulated) == (by, 4, 8, pattern, simulated)


HOST_NETWORK = ["docker run --network host i"]


@pytest.mark.parametrize(
    ("host", "texts", "starts_ray", "needs"),
    [
        # Ray's ports are the host's
        (BOX, HOST_NETWORK, True, (RAY_ON_HOST,)),
        (BOX, ["docker run --network=host i"], True, (RAY_ON_HOST,)),
        (BOX, ["docker run --net=host i"], True, (RAY_ON_HOST,)),
        # a test without Ray shares
        (BOX, HOST_NETWORK, False, ()),
        # a network of the container's own, by CI or by hosts.yaml
        (BOX, ["docker run i"], True, ()),
        (HostSpec("box", network="bridge"), HOST_NETWORK, True, ()),
        # a word that only looks alike
        (BOX, ["docker run --network hostile i"], True, ()),
        # without containers everything is the host's
        (HostSpec("bare", runtime="none"), [], True, (RAY_ON_HOST,)),
        # and so is the network of containers without a daemon
        (HostSpec("c", kind="slurm", runtime="pyxis"), ["docker run i"], True, (RAY_ON_HOST,)),
        (HostSpec("box", kind="ssh", runtime="apptainer"), ["docker run i"], True, (RAY_ON_HOST,)),
    ],
)
def test_what_a_row_cannot_share(host: HostSpec, texts: list[str], starts_ray: bool, needs: tuple[str, ...]) -> None:
    assert containers.exclusive(host, texts, starts_ray=starts_ray) == needs


def test_two_runs_of_one_id_have_containers_of_different_names() -> None:
    names = {containers.container_rules(BOX, "b.01", f"/{home}/runs/b/01", "/l", {}).name for home in ("anna", "bert")}
    assert len(names) == 2


# -- where paths lie ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("path", "mounts", "expected"), CASES["a path in the container is found through its mounts"])
def test_path_in_container_is_found_through_its_mounts(path: str, mounts: dict[str, str], expected: str | None) -> None:
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
    assert containers.environment_of(run, HostSpec("box", env={"A": "1"}), {"B": "2"}) == {
        "B": "2",
        "TEST_FILE": "x.py",
        "HF_HOME": "/data/slime_ci/hf",
    }
    assert containers.environment_of(None, HostSpec("box", env={"A": "1"}), {"B": "2"}) == {"A": "1", "B": "2"}
