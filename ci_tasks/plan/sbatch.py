"""A row on a cluster: what Slurm decides in the place of its host, and the text of the batch script that asks for it.

Rows with one text are submitted together, as one array; so nothing of a single row stands in it. The batch script is
given the run directory, or a file that lists one for each row of the array.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ci_tasks.model import Deviation, HostSpec, Plan
from ci_tasks.plan.machinery import LOCK_SCRIPT
from ci_tasks.plan.nodes import node_lines

# Minutes between the row's own timeout and Slurm's limit: the runner ends the job, collects and says how it ended.
GRACE = 5
BY_SLURM = "slurm"
_SCRIPT = re.compile(rf"[\w./-]*{LOCK_SCRIPT}\.py")
_LOCKS = "GPU locks"


@dataclass(frozen=True)
class Want:
    """What a run wants of the cluster. `alone`: no other job on its node. `options` are those of sbatch for its nodes
    and GPUs; `prologue` is bash that comes before the runner, and exports what `passed` names."""

    minutes: float
    alone: bool = False
    options: tuple[str, ...] = ("--nodes=1", "--ntasks=1")
    prologue: str = ""
    passed: tuple[str, ...] = ()


def on_slurm(plan: Plan) -> Plan:
    """The plan of a row that Slurm places: it gives the GPUs, in the place of lock files, and keeps rows apart that
    cannot share a node. A plan that is so already stays as it is."""
    if plan.gpu_locks is not None and plan.gpu_locks.get("by") == BY_SLURM:
        return replace(plan, exclusive=())
    if plan.gpu_locks is None:
        return replace(plan, exclusive=())
    found = _SCRIPT.search(plan.script) if plan.gpu_locks["by"] == "job" else None
    locks = {
        "by": BY_SLURM,
        "count": plan.gpus,
        "script": found[0].removeprefix("./") if found else None,
        "alone": bool(plan.exclusive),
    }
    kept = tuple(one for one in plan.deviations if one.what != _LOCKS)
    return replace(plan, gpu_locks=locks, exclusive=(), deviations=(*kept, *_deviations(locks)))


def want(plan: Plan, host: HostSpec, nodes: int = 1) -> Want:
    """What a row's plan wants of the host. Raises UsageError for several nodes that the host cannot give."""
    locks = on_slurm(plan).gpu_locks or {}
    # A row that no node has GPUs for is blocked for that, with all that its host lacks; its script can be shown.
    lines = node_lines(nodes, plan.gpus, host if nodes > 1 else replace(host, gpus=None))
    return Want(plan.timeout_minutes, bool(locks.get("alone")), lines.options, lines.prologue, lines.passed)


def script(host: HostSpec, wanted: Want) -> str:
    """The text of the batch script. hosts.yaml's own options come last, so that they win over ours."""
    options = [
        "--job-name=ci-tasks",
        *_named(host),
        *wanted.options,
        *(["--exclusive"] if wanted.alone else []),
        f"--time={math.ceil(wanted.minutes) + GRACE}",
        "--requeue",
        "--open-mode=append",
        *host.sbatch,
    ]
    lines = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    passed = f'export CI_TASKS_PASSED="{" ".join(wanted.passed)}"\n' if wanted.passed else ""
    return f"""#!/bin/bash
# What ci-tasks submits to {host.name} for each row that wants as much; the row itself is run.sh of its run directory.
# By hand: sbatch batch.sh RUN_DIR   (many: sbatch --array=0-N batch.sh FILE, with a run directory in each line)
{lines}
{passed}{wanted.prologue}rows=${{1:?the run directory, or a file that lists one for each row of the array}}
if [ -d "$rows" ]; then run_dir=$rows; else run_dir=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$rows"); fi
# It becomes the runner, so that Slurm's signals reach it and its exit code is the job's.
exec python3 -I "$run_dir/bin/runner.pyz" batch "$run_dir"
"""


def _named(host: HostSpec) -> Iterator[str]:
    for name, value in (("partition", host.partition), ("account", host.account), ("qos", host.qos)):
        if value:
            yield f"--{name}={value}"


def _deviations(locks: Mapping[str, Any]) -> Iterator[Deviation]:
    if locks["script"]:
        here = f"the GPUs that Slurm gave; {locks['script']} is replaced in the run's checkout by one that takes these"
        yield Deviation(_LOCKS, "one lock file a GPU", here, "its locks know nothing of other jobs on the node")
    else:
        yield Deviation(_LOCKS, "none in the row's steps", "the GPUs that Slurm gave", "Slurm keeps other jobs off")
    if locks["alone"]:
        why = "two rows that start Ray on one network use the same ports"
        yield Deviation("node", "shared with other rows", "the row's alone (--exclusive)", why)
