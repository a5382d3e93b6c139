"""Facts about a host, in the order in which `doctor` shows them. Each is questions and a pure parser of the answers."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.hosts.facts import basics, containers, disks, gpus, holders, hub, rootless, slurm, xids
from ci_tasks.hosts.facts.fact import Answers, Fact
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import OK, Finding


def first(host: HostSpec, workspace: str, images: Sequence[str] = ()) -> list[Fact]:
    """What can be asked of any host. `workspace` is the directory there for everything of ours."""
    if host.kind == "slurm":
        return [*basics.facts(), *slurm.facts(host), *_of_cluster(host), *disks.facts(host, workspace)]
    return [
        *basics.facts(),
        *containers.facts(host, images),
        *(_of_gpus(host) if gpus.wanted(host) else [_no_gpus(host)]),
        *disks.facts(host, workspace),
        *hub.facts(host),
    ]


def second(host: HostSpec, images: Sequence[str], answers: Answers) -> list[Fact]:
    """What can be asked only by what `first` showed."""
    if host.kind == "slurm":
        return []
    on_gpus = holders.facts(answers) if gpus.found(answers) else []
    return [*on_gpus, *containers.more(host, images, answers)]


def _of_cluster(host: HostSpec) -> list[Fact]:
    """Of docker and podman a login node says nothing that counts."""
    return [rootless.fact(host)] if host.runtime in ("pyxis", "apptainer") else []


def _of_gpus(host: HostSpec) -> list[Fact]:
    return [
        *gpus.facts(host),
        *xids.facts(),
        Fact(holders.FIRST, lambda _: []),  # read in the second round, with the processes' users
        Fact(disks.shm().questions, lambda answers: disks.read_shm(answers) if gpus.found(answers) else []),
    ]


def _no_gpus(host: HostSpec) -> Fact:
    text = f"{host.gpus} pretend GPUs" if host.simulate else "none, as hosts.yaml says"
    return Fact({}, lambda _: [Finding(gpus.TOPIC, OK, text)])
