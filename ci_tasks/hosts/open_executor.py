"""The executor for a host of hosts.yaml."""

from __future__ import annotations

from ci_tasks.config import HostSpec
from ci_tasks.errors import UsageError
from ci_tasks.hosts.executor import Executor


def open_executor(spec: HostSpec) -> Executor:
    """Raises UsageError for an unknown kind of host."""
    if spec.kind == "local":
        from ci_tasks.hosts.local_executor import LocalExecutor

        return LocalExecutor(spec)
    if spec.kind == "ssh":
        from ci_tasks.hosts.ssh_executor import SSHExecutor

        return SSHExecutor(spec)
    if spec.kind == "slurm":
        from ci_tasks.hosts.slurm_executor import SlurmExecutor

        return SlurmExecutor(spec)
    raise UsageError(f"host {spec.name}: unknown kind {spec.kind!r}", hint="valid: local, ssh, slurm")
