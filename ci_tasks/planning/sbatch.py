"""A row on a cluster: what Slurm decides instead of the host, and the batch script that asks for it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from ci_tasks.agent.records import JOB, SLURM, Deviation, GpuRequest, Plan
from ci_tasks.config import HostSpec
from ci_tasks.planning.deviations import LOCKS
from ci_tasks.workflow.runner import LOCK_SCRIPT

# Minutes between the row's own timeout and Slurm's limit: the runner ends the job, collects and says how it ended.
GRACE = 5
_SCRIPT = re.compile(rf"[\w./-]*{LOCK_SCRIPT}\.py")


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


def script(plan: Plan, host: HostSpec, limit: float | None) -> str:
    """The text of the batch script of a row's plan. hosts.yaml's own options come last, so that they win over ours.
    `limit` is the longest that a job may ask for, in minutes; None if there is no limit."""
    minutes = math.ceil(plan.timeout_minutes) + GRACE
    if limit is not None:
        minutes = min(minutes, max(1, math.floor(limit)))
    locks = on_slurm(plan).gpu_locks
    named = (("partition", host.partition), ("account", host.account), ("qos", host.qos))
    options = [
        "--job-name=ci-tasks",
        *(f"--{name}={value}" for name, value in named if value),
        *("--nodes=1", "--ntasks=1"),
        *([f"--gres={host.gres or 'gpu'}:{plan.gpus}"] if plan.gpus else []),
        *(["--exclusive"] if locks is not None and locks.exclusive_node else []),
        *(f"--time={minutes}", "--requeue", "--open-mode=append"),
        *host.sbatch,
    ]
    lines = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    return f"""#!/bin/bash
# What ci-tasks submits to {host.name}; the row itself is run.sh of its run directory.
# By hand: sbatch batch.sh RUN_DIR
{lines}
run_dir=${{1:?the run directory}}
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
