"""Facts about a host, in the order in which `doctor` shows them. Each is queries and a pure parser of the answers."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import (
    basics,
    cluster,
    containers,
    daemonless,
    disks,
    gpu_usage,
    gpu_xids,
    gpus,
    hub_access,
)
from ci_tasks.features.doctor.check_results import OK, CheckResult
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers


def first_round(host: HostSpec, workspace: str, images: Sequence[str] = ()) -> list[HostFact]:
    """Facts of any host. `workspace` is the directory of ci-tasks there."""
    if host.kind == "slurm":
        return [*basics.facts(), *cluster.facts(host), *_of_cluster(host), *disks.facts(host, workspace)]
    return [
        *basics.facts(),
        *containers.facts(host, images),
        *(_of_gpus(host) if gpus.uses_gpus(host) else [_no_gpus(host)]),
        *disks.facts(host, workspace),
        *hub_access.facts(host),
    ]


def second_round(host: HostSpec, images: Sequence[str], answers: QueryAnswers) -> list[HostFact]:
    if host.kind == "slurm":
        return []
    on_gpus = gpu_usage.facts(answers) if gpus.visible_gpus(answers) else []
    return [*on_gpus, *containers.store_facts(host, images, answers)]


def _of_cluster(host: HostSpec) -> list[HostFact]:
    """Of docker and podman a login node says nothing that counts."""
    return [daemonless.fact(host)] if host.runtime in ("pyxis", "apptainer") else []


def _of_gpus(host: HostSpec) -> list[HostFact]:
    return [
        *gpus.facts(host),
        *gpu_xids.facts(),
        HostFact(gpu_usage.FIRST_QUERIES, lambda _: []),  # read in the second round, with the processes' users
        HostFact(
            {"shm": disks.SHM_QUERY}, lambda answers: disks.parse_shm(answers) if gpus.visible_gpus(answers) else []
        ),
    ]


def _no_gpus(host: HostSpec) -> HostFact:
    text = f"{host.gpus} simulated GPUs" if host.simulate else "none, as hosts.yaml says"
    return HostFact({}, lambda _: [CheckResult(gpus.TOPIC, OK, text)])
