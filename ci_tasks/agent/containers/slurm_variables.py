"""The variables of a Slurm job that its containers need: which GPUs are the job's, and its nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_JOB = "SLURM_JOB_ID"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_GLOBAL_IDS = "SLURM_JOB_GPUS"
# The names by which slime finds the nodes of its job; set where a row has several.
_NODES = ("SLURM_JOB_HOSTNAMES", "SLURM_JOB_NUM_NODES", "SLURM_NODEID", "MASTER_ADDR")


def slurm_variables(environ: Mapping[str, str], by_daemon: bool) -> dict[str, str]:
    """The variables that a container of the job gets; none outside of a job.

    A daemon's container (`by_daemon`) is not in the job's cgroup: it sees every GPU of the node, so that the node's own
    numbers count there. Where the job's processes see only their GPUs, Slurm numbers those from 0.
    """
    if _JOB not in environ:
        return {}
    nodes = {name: environ[name] for name in _NODES if name in environ} if _NODES[0] in environ else {}
    gpus = environ.get(_GLOBAL_IDS, environ.get(VISIBLE)) if by_daemon else environ.get(VISIBLE)
    return {**nodes, **({} if gpus is None else {VISIBLE: gpus})}
