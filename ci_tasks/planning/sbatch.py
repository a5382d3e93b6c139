"""A row on a cluster: what Slurm decides instead of the host, the batch script that asks for it, and rows over several
nodes, by slime's convention.

Such a row's script runs on the first node and has as many GPUs on each as CI's row has on its one machine. slime finds
its nodes in `SLURM_JOB_HOSTNAMES` (a name a line, the first is the head), `SLURM_JOB_NUM_NODES`, `SLURM_NODEID` and
`MASTER_ADDR`; the other nodes join its Ray: see ci_tasks.agent.containers.adapter.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import JOB, SLURM, Deviation, GpuRequest, Plan
from ci_tasks.config import HostSpec
from ci_tasks.errors import UsageError
from ci_tasks.planning.deviations import LOCKS
from ci_tasks.workflow.runner import LOCK_SCRIPT

# Minutes between the row's own timeout and Slurm's limit: the runner ends the job, collects and says how it ended.
GRACE = 5
_SCRIPT = re.compile(rf"[\w./-]*{LOCK_SCRIPT}\.py")
# Ray takes an address of the head's, not a name that may mean 127.0.1.1 there. A job's own MASTER_ADDR counts.
_PROLOGUE = """\
export SLURM_JOB_HOSTNAMES="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
export MASTER_ADDR="${MASTER_ADDR:-$(hostname -I | cut -d' ' -f1)}"
"""
_PASSED = ("SLURM_JOB_HOSTNAMES", "MASTER_ADDR")


class NodeLines(NamedTuple):
    """What a row's nodes mean for its batch script: `options` of sbatch, a `prologue` in bash that exports what
    `passed` names, and what differs from CI."""

    options: tuple[str, ...]
    prologue: str = ""
    passed: tuple[str, ...] = ()
    deviations: tuple[Deviation, ...] = ()


@dataclass(frozen=True)
class SlurmResources:
    """What a run wants of the cluster. `exclusive_node`: no other job on its node. `limit` is the longest that a job
    may ask for, in minutes; None where there is no limit."""

    minutes: float
    exclusive_node: bool = False
    nodes: NodeLines = NodeLines(("--nodes=1", "--ntasks=1"))
    limit: float | None = None


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
    return NodeLines((f"--nodes={nodes}", "--ntasks-per-node=1", *gres), _PROLOGUE, _PASSED, (deviation,))


def on_slurm(plan: Plan) -> Plan:
    """The plan of a row that Slurm places: it gives the GPUs, in the place of lock files, and keeps rows apart that
    cannot share a node. A plan that is so already stays as it is."""
    if plan.gpu_locks is None or plan.gpu_locks.by == SLURM:
        return replace(plan, exclusive=())
    match = _SCRIPT.search(plan.script) if plan.gpu_locks.by == JOB else None
    script = match[0].removeprefix("./") if match else None
    locks = GpuRequest(count=plan.gpus, by=SLURM, script=script, exclusive_node=bool(plan.exclusive))
    kept = tuple(deviation for deviation in plan.deviations if deviation.what != LOCKS)
    return replace(plan, gpu_locks=locks, exclusive=(), deviations=(*kept, *_deviations(locks)))


def within_limit(plan: Plan, limit: float | None, host: HostSpec) -> Plan:
    """The plan with a timeout that its partition allows: a job that asks for more would wait for ever."""
    minutes = plan.timeout_minutes if limit is None else max(limit - GRACE, limit / 2)
    if limit is None or plan.timeout_minutes <= minutes:
        return plan
    where = f"partition {host.partition}" if host.partition else "the default partition"
    why = f"{where} of {host.name} runs jobs for {limit:g} min at most"
    deviation = Deviation("time limit", f"{plan.timeout_minutes:g} min", f"{minutes:g} min", why)
    return replace(plan, timeout_minutes=minutes, deviations=(*plan.deviations, deviation))


def want(plan: Plan, host: HostSpec, nodes: int = 1) -> SlurmResources:
    """What a row's plan wants of the host. Raises UsageError for several nodes that the host cannot give."""
    locks = on_slurm(plan).gpu_locks
    # A row that no node has GPUs for is blocked for that, with all that its host lacks; its script can be shown.
    lines = node_lines(nodes, plan.gpus, host if nodes > 1 else replace(host, gpus=None))
    is_alone = locks is not None and locks.exclusive_node
    return SlurmResources(plan.timeout_minutes, is_alone, lines)


def script(host: HostSpec, resources: SlurmResources) -> str:
    """The text of the batch script. hosts.yaml's own options come last, so that they win over ours."""
    minutes = math.ceil(resources.minutes) + GRACE
    if resources.limit is not None:
        minutes = min(minutes, max(1, math.floor(resources.limit)))
    named = (("partition", host.partition), ("account", host.account), ("qos", host.qos))
    options = [
        "--job-name=ci-tasks",
        *(f"--{name}={value}" for name, value in named if value),
        *resources.nodes.options,
        *(["--exclusive"] if resources.exclusive_node else []),
        *(f"--time={minutes}", "--requeue", "--open-mode=append"),
        *host.sbatch,
    ]
    lines = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    nodes = resources.nodes
    passed = f'export CI_TASKS_PASSED="{" ".join(nodes.passed)}"\n' if nodes.passed else ""
    return f"""#!/bin/bash
# What ci-tasks submits to {host.name}; the row itself is run.sh of its run directory.
# By hand: sbatch batch.sh RUN_DIR
{lines}
{passed}{nodes.prologue}run_dir=${{1:?the run directory}}
# It becomes the runner, so that Slurm's signals reach it and its exit code is the job's.
exec python3 -I "$run_dir/bin/agent.pyz" batch "$run_dir"
"""


def _deviations(locks: GpuRequest) -> Iterator[Deviation]:
    if locks.script:
        here = f"the GPUs that Slurm gave; {locks.script} is replaced in the run's checkout by one that takes these"
        yield Deviation(LOCKS, "one lock file a GPU", here, "its locks know nothing of other jobs on the node")
    else:
        yield Deviation(LOCKS, "none in the row's steps", "the GPUs that Slurm gave", "Slurm keeps other jobs off")
    if locks.exclusive_node:
        why = "two rows that start Ray on one network use the same ports"
        yield Deviation("node", "shared with other rows", "the row's alone (--exclusive)", why)
