"""The host of a run that began earlier."""

from __future__ import annotations

from ci_tasks.agent.records import RemoteLocation
from ci_tasks.config import HostSpec


def host_of_run(remote: RemoteLocation) -> HostSpec:
    """The host where the run is, as it was called then: hosts.yaml may say something else by now."""
    return HostSpec(remote.host, remote.kind, remote.address, workspace=remote.workspace, persist=remote.persist)
