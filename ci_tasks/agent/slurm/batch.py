"""The agent as a batch job: `python agent.pyz batch RUN_DIR`, on a compute node, with the GPUs that Slurm allocated.

It stays in the foreground, so that Slurm ends it with the job and gets its exit code. A job that was requeued starts
over, in a new checkout, with the same record: its log is continued.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Dict, List, Mapping, Optional

from .. import processes, run_directory, supervisor
from ..gpus.locks import ResourcesUnavailable
from ..records import Plan, SlurmAllocation, SlurmJob, SlurmStart
from ..run_directory import VISIBLE_GPUS
from ..trees.git import StoreError
from ..trees.workspace import TreeStore
from . import jobs
from .jobs import batch_exit_code

_NODE_GPUS = "SLURM_JOB_GPUS"
# What the programs need that start a container.
_RUNTIME_PREFIXES = {"pyxis": ("SLURM", "ENROOT_", "PYXIS_"), "apptainer": ("APPTAINER_", "SINGULARITY_")}
# A lock script of the checkout would take the lowest GPUs of the node without a locked file, even another job's: its
# locks know nothing of Slurm's, and where a job sees only its own GPUs, Slurm numbers them from 0 for every job.
_LOCK_SCRIPT = '''#!/usr/bin/env python3
"""Put here by ci-tasks in place of the checkout's lock script: the job has the GPUs that Slurm allocated."""
import os
import sys

gpus = {gpus!r}
count, dashes = int(sys.argv[sys.argv.index("--count") + 1]), sys.argv.index("--") + 1
if count > len(gpus):
    sys.exit(f"[gpu_lock_exec] Slurm allocated the GPUs {{','.join(gpus)}}, and {{count}} are needed")
os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[:count])
print("[gpu_lock_exec] Acquired GPUs: " + os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
os.execvp(sys.argv[dashes], sys.argv[dashes:])
'''


def batch(run_dir: str) -> int:
    """Run the plan to its end. Returns the exit code for Slurm: the job's own."""
    paths = run_directory.RunDir(run_dir)
    job, plan, job_id = jobs.read(run_dir), run_directory.read_plan(paths), os.environ.get("SLURM_JOB_ID")
    if run_directory.read_status(paths).concluded or (job and job_id and job.id not in ("", job_id)):
        sys.exit("ci-tasks: %s has ended, or was submitted again" % run_dir)
    is_requeued = run_directory.read_record(SlurmStart, paths.attempt) is not None
    start = SlurmStart(*processes.identity(), job=job_id, restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0))
    run_directory.write_record(paths.attempt, start)
    os.environ.update(jobs.read_secrets(run_dir))
    problem = ""
    passed: Dict[str, str] = {}
    try:
        if is_requeued:
            _start_over(paths, job, plan)
        passed = job_variables(plan, os.environ)
        if plan.gpu_locks is not None and plan.gpu_locks.script and plan.workspace:
            replace_lock_script(os.path.join(plan.workspace, plan.gpu_locks.script), gpus(passed))
    except (ResourcesUnavailable, StoreError, OSError) as error:
        problem = str(error)
    signal.pthread_sigmask(signal.SIG_BLOCK, processes.BLOCKED_AT_START)
    with processes.SignalPipe() as wake:
        # Slurm decides which GPUs the job has, and who shares the node.
        plan = replace(plan, gpu_locks=None, exclusive=(), host_env={**plan.host_env, **passed})
        agent = _BatchSupervisor(paths, plan, wake)
        if is_requeued:
            place = "(requeue %d), on %s" % (start.restarts, os.environ.get("SLURMD_NODENAME"))
            agent.log.write_line("ci-tasks: Slurm started the job again %s; it starts over in a new checkout" % place)
        agent.prepare(start, passed, problem)
        agent.run(lambda: None)
    jobs.delete_secrets(run_dir)
    return batch_exit_code(agent.status)  # not what status.json says by now: the job can write that


class _BatchSupervisor(supervisor.Supervisor):
    """A supervisor whose job Slurm may end, and may have started elsewhere meanwhile."""

    def prepare(self, start: SlurmStart, passed: Mapping[str, str], problem: str) -> None:
        self._start_mark, self._problem = start, problem
        # How long the job waited, by the file system's clock alone: the login node's clock may differ.
        submitted, began = map(os.path.getmtime, (self.paths.slurm_job, self.paths.attempt))
        self.status = replace(
            self.status,
            slurm=SlurmAllocation(start.job, os.environ.get("SLURMD_NODENAME"), start.restarts),
            queue_seconds=max(0.0, began - submitted),
            gpu_ids=tuple(int(gpu) for gpu in gpus(passed) if gpu.isdigit()) or None,
        )

    def _execute(self) -> supervisor.EndAndCode:
        return self._blocked(self._problem) if self._problem else super()._execute()

    def _write_status(self) -> None:
        if run_directory.read_record(SlurmStart, self.paths.attempt) not in (None, self._start_mark):
            # A node that was thought to be down goes on, while the job runs elsewhere: the record is the other's.
            processes.kill_everything()
            os._exit(1)
        super()._write_status()


def _start_over(paths: run_directory.RunDir, job: Optional[SlurmJob], plan: Plan) -> None:
    """Remove what an earlier attempt left, which would be taken for this one's, and check out again: unless rows share
    the checkout. Raises StoreError, OSError."""
    for path in (paths.artifacts, os.path.join(paths.path, "tmp")):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("docker.json", "environment.json", "gpu.csv"):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(paths.path, name))
    os.makedirs(paths.artifacts, exist_ok=True)
    if job is not None and job.parts:
        TreeStore(job.store).check_out(job.parts, plan.workspace)


# -- the GPUs that Slurm allocated -----------------------------------------------------------------------------------


def job_variables(plan: Plan, environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables of the batch script that its job gets on top of those of any job: as many GPUs as it needs; all of
    Slurm's where these start its container. Raises ResourcesUnavailable."""
    prefixes = _RUNTIME_PREFIXES.get(plan.container_runtime or "", ())
    names = ("SLURM_JOB_ID", _NODE_GPUS, VISIBLE_GPUS)
    passed = {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}
    count = plan.gpu_locks.count if plan.gpu_locks is not None else 0
    allocated = [gpu for gpu in gpus(passed) if gpu != "NoDevFiles"]
    if len(allocated) < count:
        message = "Slurm allocated %d GPUs to the job (CUDA_VISIBLE_DEVICES=%s), the row needs %d"
        raise ResourcesUnavailable(message % (len(allocated), passed.get(VISIBLE_GPUS, ""), count))
    given = {name: passed[name].split(",")[:count] for name in (VISIBLE_GPUS, _NODE_GPUS) if count and name in passed}
    return {**passed, **{name: ",".join(few) for name, few in given.items()}}


def gpus(passed: Mapping[str, str]) -> List[str]:
    """The job's GPUs as it sees them, and as nvidia-smi numbers them there."""
    return [gpu for gpu in passed.get(VISIBLE_GPUS, "").split(",") if gpu]


def replace_lock_script(path: str, allocated: List[str]) -> None:
    """Replace the lock script in a run's own checkout. Raises OSError."""
    if os.path.isfile(path) and not os.path.islink(path):  # else the row's steps fail, and say why
        with open(path, "w", encoding="utf-8") as out:
            out.write(_LOCK_SCRIPT.format(gpus=allocated))
