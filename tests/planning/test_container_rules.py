"""What the runner is told about containers, GPU locks and what a row needs for itself."""

from __future__ import annotations

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.planning.containers import RAY_ON_HOST, container_rules, exclusive, gpu_locks
from ci_tasks.workflow.model import Row

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
    locks = gpu_locks(ROW, host, "/locks", texts)
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
    assert exclusive(host, texts, starts_ray=starts_ray) == needs


def test_two_runs_of_one_id_have_containers_of_different_names() -> None:
    names = {container_rules(BOX, "b.01", f"/{home}/runs/b/01", "/l", {}).name for home in ("anna", "bert")}
    assert len(names) == 2
