"""The agent as a batch job: `python agent.pyz batch RUN_DIR`, on a compute node.

It stays in the foreground, so that Slurm ends it with the job and gets its exit code. A job that was requeued starts
over, in a new checkout, with the same record: its log is continued.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import replace
from typing import Dict, Mapping, Optional

from .. import process_tree, processes, run_directory, signals, supervisor
from ..gpus import nvidia_smi
from ..job_environment import secret_values
from ..records import End, Plan, SlurmAllocation, SlurmJob, SlurmStart
from ..trees.git import ID, StoreError
from ..trees.store import TreeStore
from . import allocated_gpus, job_file
from .outcome import batch_exit_code
from .record_end import AppendedLog

_ATTEMPT_FILES = ("docker.json", "environment.json", "gpu.jsonl")


class _CheckoutError(Exception):
    """The run cannot start here; the message says why."""


def batch(run_dir: str) -> int:
    """Run the plan to its end. Returns the exit code for Slurm: the job's own."""
    paths = run_directory.RunDir(run_dir)
    if run_directory.read_status(paths).concluded:
        print("ci-tasks: %s has ended, and does not start again" % paths.path, file=sys.stderr)
        return 1
    job = job_file.read(paths.path)
    plan = run_directory.read_plan(paths)
    is_requeued = job_file.read_attempt(paths.path) is not None
    job_id = os.environ.get("SLURM_JOB_ID")
    if job is not None and job_id and job.id not in ("", job_id):
        print("ci-tasks: %s is job %s, which was submitted again" % (paths.path, job.id), file=sys.stderr)
        return 1
    start = SlurmStart(*processes.identity(), job=job_id, restarts=_restarts())
    job_file.write_attempt(paths.path, start)
    os.environ.update(job_file.read_secrets(paths.path))
    problem = ""
    passed: Dict[str, str] = {}
    try:
        if is_requeued:
            _clear(paths)
            if job is not None:
                _check_out_again(job, plan)
        passed = allocated_gpus.environment(plan, os.environ)
        script = plan.gpu_locks.script if plan.gpu_locks is not None else None
        if script and plan.workspace:
            allocated_gpus.replace_lock_script(plan.workspace, script, allocated_gpus.gpus(passed))
    except (_CheckoutError, allocated_gpus.NoGpusAllocated) as error:
        problem = str(error)
    except OSError as error:
        problem = "%s: %s" % (error.filename, error.strerror)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.BLOCKED_AT_START)
    with signals.SignalPipe() as wake:
        log = AppendedLog(paths.log, secret_values(plan))
        if is_requeued:
            log.write_line(_restart_line(start))
        # Slurm decides which GPUs the job has, and who shares the node.
        plan = replace(plan, gpu_locks=None, exclusive=(), host_env={**plan.host_env, **passed})
        agent = _BatchSupervisor(paths, plan, log, wake)
        agent.prepare(start, passed, problem, _queue_seconds(paths.path) if job is not None else 0.0)
        agent.run(lambda: None)
    job_file.delete_secrets(paths.path)
    return batch_exit_code(agent.status)  # not what status.json says by now: the job can write that


class _BatchSupervisor(supervisor.Supervisor):
    """A supervisor whose job Slurm may end, and may have started elsewhere meanwhile."""

    def prepare(self, start: SlurmStart, passed: Mapping[str, str], problem: str, queued: float) -> None:
        self._start_mark, self._passed, self._problem = start, passed, problem
        self.status = replace(
            self.status,
            slurm=SlurmAllocation(start.job, os.environ.get("SLURMD_NODENAME"), start.restarts),
            gpu_ids=tuple(allocated_gpus.gpu_ids(passed)) or None,
            queue_seconds=queued,
        )

    def _execute(self) -> supervisor.EndAndCode:
        if self._problem:
            return self._blocked(self._problem)
        if allocated_gpus.gpus(self._passed):
            uuids = allocated_gpus.gpu_uuids(self._passed, nvidia_smi.query_gpus().gpus)
            self.status = replace(self.status, gpu_uuids=tuple(uuids))
        return super()._execute()

    def _finish(self, end: End, code: Optional[int]) -> None:
        # The signal that ends a job reaches its processes too, and theirs may be the first end to be seen.
        if self.signals.stop_requested:
            self.status = replace(self.status, signalled=True)
        super()._finish(end, code)

    def _write_status(self) -> None:
        if job_file.read_attempt(self.paths.path) not in (None, self._start_mark):
            # A node that was thought to be down goes on, while the job runs elsewhere: the record is the other's.
            process_tree.kill_everything()
            os._exit(1)
        super()._write_status()


def _restart_line(start: SlurmStart) -> str:
    count = "requeue %d" % start.restarts if start.restarts else "once more"
    node = os.environ.get("SLURMD_NODENAME") or "another node"
    return "ci-tasks: Slurm started the job again (%s), on %s; it starts over in a new checkout" % (count, node)


def _clear(paths: run_directory.RunDir) -> None:
    """Remove what an earlier attempt left: it would be taken for this one's."""
    for path in (paths.artifacts, os.path.join(paths.path, "tmp")):
        shutil.rmtree(path, ignore_errors=True)
    for name in _ATTEMPT_FILES:
        try:
            os.unlink(os.path.join(paths.path, name))
        except FileNotFoundError:
            pass
    os.makedirs(paths.artifacts, exist_ok=True)


def _check_out_again(job: SlurmJob, plan: Plan) -> None:
    if not job.parts or not ID.fullmatch(job.parts[0].tree):
        return  # a checkout that rows share is not this run's to replace
    try:
        form = "sha256" if len(job.parts[0].tree) == 64 else "sha1"
        TreeStore(job.store, form).check_out(job.parts, plan.workspace)
    except StoreError as error:
        raise _CheckoutError("the checkout could not be created again: %s" % error) from None


def _queue_seconds(run_dir: str) -> float:
    """How long the job waited, by the clock of the file system alone: that of the login node may differ."""
    return max(0.0, os.path.getmtime(job_file.attempt_path(run_dir)) - os.path.getmtime(job_file.path(run_dir)))


def _restarts() -> int:
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0
