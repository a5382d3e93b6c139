"""The GPUs that Slurm allocated to a job, and how the job gets exactly these. Pure, but for the replaced lock script.

A lock script of the checkout would take the lowest GPUs of the node without a locked file, even another job's: its
locks know nothing of Slurm's, and where a job sees only its own GPUs, Slurm numbers them from 0 for every job. So the
run's own checkout gets a script of the same name that takes what Slurm allocated.
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Sequence

from ..gpus.nvidia_smi import Gpu
from ..records import Plan

_VISIBLE, _NODE_GPUS = "CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS"
# What the programs need that start a container, or the job's other nodes.
_RUNTIME_PREFIXES = {"pyxis": ("SLURM", "ENROOT_", "PYXIS_"), "apptainer": ("APPTAINER_", "SINGULARITY_")}
_SEVERAL_NODES = "SLURM_JOB_HOSTNAMES"
_ALWAYS = ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
ENV_PASSED = "CI_TASKS_PASSED"  # names of further variables that the batch script gives its job

_LOCK_SCRIPT = '''#!/usr/bin/env python3
"""Put here by ci-tasks in place of the checkout's lock script: the job has the GPUs that Slurm allocated."""

import argparse
import os
import sys

GPUS = {gpus!r}

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, required=True)
for name in ("--total-gpus", "--timeout", "--lock-path-pattern"):
    parser.add_argument(name)
parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
args = parser.parse_args()
command = args.command[args.command[:1] == ["--"] :]
if not command:
    parser.error("no command after --")
if args.count > len(GPUS):
    sys.exit(f"[gpu_lock_exec] Slurm allocated the GPUs {{','.join(GPUS)}}, and {{args.count}} are needed")
gpus = ",".join(GPUS[: args.count])
print(f"[gpu_lock_exec] Acquired GPUs: {{gpus}}", flush=True)
try:
    os.execvpe(command[0], command, {{**os.environ, "CUDA_VISIBLE_DEVICES": gpus}})
except OSError as error:
    sys.exit(f"[gpu_lock_exec] {{command[0]}}: {{error.strerror}}")
'''


class NoGpusAllocated(Exception):
    """The job does not have the GPUs that its row needs; the message says what it has."""


def environment(plan: Plan, environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables of the batch script that its job gets on top of those of any job: as many GPUs as it needs; all of
    Slurm's where these start its container, or its other nodes. Raises NoGpusAllocated."""
    passed = {name: environ[name] for name in environ.get(ENV_PASSED, "").split() if name in environ}
    prefixes = _RUNTIME_PREFIXES.get(plan.container_runtime or "", ())
    prefixes += ("SLURM",) if _SEVERAL_NODES in passed else ()
    passed.update({name: environ[name] for name in environ if name in _ALWAYS or name.startswith(prefixes)})
    count = plan.gpu_locks.count if plan.gpu_locks is not None else 0
    if not count:
        return passed
    visible = passed.get(_VISIBLE, "")
    allocated = [gpu for gpu in visible.split(",") if gpu and gpu != "NoDevFiles"]
    if len(allocated) < count:
        value = "CUDA_VISIBLE_DEVICES=%s" % visible if visible else "CUDA_VISIBLE_DEVICES is not set"
        message = "Slurm allocated %d GPUs to the job (%s), the row needs %d"
        raise NoGpusAllocated(message % (len(allocated), value, count))
    for name in (_VISIBLE, _NODE_GPUS):
        if name in passed:
            passed[name] = ",".join(passed[name].split(",")[:count])
    return passed


def gpus(passed: Mapping[str, str]) -> List[str]:
    """The job's GPUs as it sees them."""
    return [gpu for gpu in passed.get(_VISIBLE, "").split(",") if gpu]


def gpu_ids(passed: Mapping[str, str]) -> List[int]:
    """Their numbers on the node, where Slurm gives them."""
    numbers = (passed.get(_NODE_GPUS) or passed.get(_VISIBLE) or "").split(",")
    return [int(gpu) for gpu in numbers if gpu.isdigit()]


def gpu_uuids(passed: Mapping[str, str], shown: Sequence[Gpu]) -> List[str]:
    """Their UUIDs, given what nvidia-smi shows: only the job's own GPUs, or all of the node's."""
    visible = gpus(passed)
    if visible and all(gpu.startswith("GPU-") for gpu in visible):
        return visible
    ids = gpu_ids(passed)
    return [gpu.uuid for gpu in shown if len(shown) == len(visible) or gpu.index in ids]


def replace_lock_script(workspace: str, script: str, gpus: List[str]) -> None:
    """Replace the lock script in a run's own checkout. Raises OSError."""
    path = os.path.join(workspace, script)
    if os.path.islink(path) or not os.path.isfile(path):
        return  # the row's steps fail then, and say why
    with open(path, "w", encoding="utf-8") as out:
        out.write(_LOCK_SCRIPT.format(gpus=gpus))
