"""Which site a host of hosts.yaml is."""

from __future__ import annotations

from ci_tasks.errors import UsageError
from ci_tasks.flows.site import Site
from ci_tasks.model import HostSpec


def open_site(spec: HostSpec) -> Site:
    """Raises UsageError for a kind of host that there is none of."""
    if spec.kind == "local":
        from ci_tasks.flows.here import Here

        return Here(spec)
    if spec.kind == "ssh":
        from ci_tasks.flows.there import There

        return There(spec)
    if spec.kind == "slurm":
        from ci_tasks.flows.cluster import Cluster

        return Cluster(spec)
    raise UsageError(
        f"host {spec.name} is of kind {spec.kind}, which there is none of", hint="valid: local, ssh, slurm"
    )
