"""A row over several nodes of a cluster, by slime's convention: what sbatch is asked for, and how the row learns of it.

The row's script runs on the first node and has as many GPUs on each as CI's row has on its one machine. slime finds its
nodes in `SLURM_JOB_HOSTNAMES` (a name a line, the first is the head), `SLURM_JOB_NUM_NODES`, `SLURM_NODEID` and
`MASTER_ADDR`; the other nodes join its Ray: see ci_tasks.agent.containers.ray_nodes.
"""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.errors import UsageError
from ci_tasks.records import Deviation

# Ray takes an address of the head's, not a name that may mean 127.0.1.1 there. A job's own MASTER_ADDR counts.
_PROLOGUE = """\
export SLURM_JOB_HOSTNAMES="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
export MASTER_ADDR="${MASTER_ADDR:-$(hostname -I | cut -d' ' -f1)}"
"""
_PASSED = ("SLURM_JOB_HOSTNAMES", "MASTER_ADDR")


@dataclass(frozen=True)
class NodeLines:
    """What a row's nodes mean for its batch script: `options` of sbatch, a `prologue` in bash that exports what
    `passed` names, and what differs from CI."""

    options: tuple[str, ...]
    prologue: str = ""
    passed: tuple[str, ...] = ()
    deviations: tuple[Deviation, ...] = ()


def node_lines(nodes: int, gpus: int, host: HostSpec) -> NodeLines:
    """For a row with `gpus` GPUs on each of `nodes` nodes. Raises UsageError for what the host cannot give."""
    if nodes < 1:
        raise UsageError(f"--nodes {nodes}: a row runs on at least one")
    if nodes > 1 and host.kind != "slurm":
        raise UsageError(f"--nodes {nodes}: host {host.name} is one machine", hint="a host of kind slurm has several")
    if nodes > 1 and host.runtime in ("docker", "podman"):
        hint = "runtime: pyxis, apptainer or none"
        raise UsageError(f"--nodes {nodes}: {host.runtime} of host {host.name} cannot start the other nodes", hint=hint)
    if host.gpus is not None and gpus > host.gpus:
        hint = "--nodes N gives the row that many GPUs on each node"
        raise UsageError(f"{gpus} GPUs on one node, and those of host {host.name} have {host.gpus}", hint=hint)
    gres = (f"--gres={host.gres or 'gpu'}:{gpus}",) if gpus else ()
    if nodes == 1:
        return NodeLines(("--nodes=1", "--ntasks=1", *gres))
    here = f"{nodes} nodes with {gpus} GPUs each"
    deviation = Deviation("nodes", "one machine", here, "asked for by --nodes; the others join the row's Ray")
    options = (f"--nodes={nodes}", "--ntasks-per-node=1", *gres)
    return NodeLines(options, _PROLOGUE, _PASSED, (deviation,))
