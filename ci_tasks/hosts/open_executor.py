"""The executor for a host of hosts.yaml."""

from __future__ import annotations

from ci_tasks.config import HostSpec
from ci_tasks.hosts.executor import Executor


def open_executor(spec: HostSpec) -> Executor:
    if spec.kind == "local":
        from ci_tasks.hosts.local_executor import LocalExecutor

        return LocalExecutor(spec)
    if spec.kind == "slurm":
        from ci_tasks.hosts.slurm_executor import SlurmExecutor

        return SlurmExecutor(spec)
    return Executor(spec)
