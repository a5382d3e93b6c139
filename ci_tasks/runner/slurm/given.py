"""The GPUs that Slurm gave to a job, and how the job gets these and no others. Pure, but for the stand-in's file.

A lock script of the checkout would give it the lowest GPUs of the node that no lock file keeps, be they another job's:
the script's locks know nothing of Slurm's, and where a job sees its own GPUs only, Slurm numbers them from 0 for
everybody. So the run's own checkout gets a script of the same name that takes what Slurm gave.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

BY_SLURM = "slurm"
_VISIBLE, _OF_NODE = "CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS"
# What a container's program, or the one that starts the job's other nodes, has to know.
_OF_RUNTIME = {"pyxis": ("SLURM", "ENROOT_", "PYXIS_"), "apptainer": ("APPTAINER_", "SINGULARITY_")}
_OF_NODES, _SEVERAL = ("SLURM",), "SLURM_JOB_HOSTNAMES"
_ALWAYS = ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
ENV_PASSED = "CI_TASKS_PASSED"  # what the batch script wants its job to have, besides

_STAND_IN = '''#!/usr/bin/env python3
"""Put here by ci-tasks, in the place of the checkout's lock script: the job has the GPUs that Slurm gave it."""

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
    sys.exit(f"[gpu_lock_exec] Slurm gave the GPUs {{','.join(GPUS)}}, and {{args.count}} are wanted")
gpus = ",".join(GPUS[: args.count])
print(f"[gpu_lock_exec] Acquired GPUs: {{gpus}}", flush=True)
try:
    os.execvpe(command[0], command, {{**os.environ, "CUDA_VISIBLE_DEVICES": gpus}})
except OSError as error:
    sys.exit(f"[gpu_lock_exec] {{command[0]}}: {{error.strerror}}")
'''


class NotGiven(Exception):
    """The job has not the GPUs that its row wants; the message says what it has."""


def environment(plan: Mapping[str, Any], environ: Mapping[str, str]) -> Dict[str, str]:
    """What a job gets of its batch script's environment on top of what any job gets: its GPUs, as many as it wants;
    everything of Slurm's where that starts its container, or its other nodes. Raises NotGiven."""
    passed = {name: environ[name] for name in environ.get(ENV_PASSED, "").split() if name in environ}
    heads = _OF_RUNTIME.get(str((plan.get("container") or {}).get("runtime")), ())
    heads += _OF_NODES if _SEVERAL in passed else ()
    passed.update({name: environ[name] for name in environ if name in _ALWAYS or name.startswith(heads)})
    wanted = (plan.get("gpu_locks") or {}).get("count") or 0
    for name in (_VISIBLE, _OF_NODE):
        if wanted and name in passed:
            passed[name] = ",".join(passed[name].split(",")[:wanted])
    if wanted:
        _enough(passed.get(_VISIBLE, ""), wanted)
    return passed


def gpus(passed: Mapping[str, str]) -> List[str]:
    """The job's GPUs as it sees them."""
    return [gpu for gpu in passed.get(_VISIBLE, "").split(",") if gpu]


def gpu_ids(passed: Mapping[str, str]) -> List[int]:
    """Their numbers on the node, where Slurm says them."""
    named = (passed.get(_OF_NODE) or passed.get(_VISIBLE) or "").split(",")
    return [int(gpu) for gpu in named if gpu.isdigit()]


def stand_in(workspace: str, script: str, given: List[str]) -> None:
    """Replace the lock script of a run's own checkout. Raises OSError."""
    path = os.path.join(workspace, script)
    if os.path.islink(path) or not os.path.isfile(path):
        return  # then its steps will say so
    with open(path, "w", encoding="utf-8") as out:
        out.write(_STAND_IN.format(gpus=given))


def _enough(visible: str, wanted: int) -> None:
    has = [gpu for gpu in visible.split(",") if gpu and gpu != "NoDevFiles"]
    if len(has) < wanted:
        said = "CUDA_VISIBLE_DEVICES=%s" % visible if visible else "CUDA_VISIBLE_DEVICES is not set"
        raise NotGiven("Slurm gave the job %d GPUs (%s), the row needs %d" % (len(has), said, wanted))
