"""Connecting to a host, and how a run there stands.

This module is loaded before all else of a command: see ci_tasks.hosts.executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ci_tasks.config import HostSpec
from ci_tasks.hosts import host_cache, mux
from ci_tasks.hosts.connection import ReconnectingConnection
from ci_tasks.hosts.prepared_row import RunState
from ci_tasks.hosts.queries import LocalQueryRunner, QueryRunner
from ci_tasks.hosts.remote_run import SENDING, WATCHING, RemoteRun
from ci_tasks.hosts.run_manager import RemoteRunManager
from ci_tasks.hosts.transport import LocalTransport, Transport
from ci_tasks.results import store


def open_remote_host(spec: HostSpec) -> RemoteRunManager:
    """The host, being connected to in the background."""
    if spec.kind == "local":
        spec = replace(spec, workspace=str(store.home()))
    transport = _transport(spec)
    cache_file = store.home() / "hosts" / f"{host_cache.key(spec)}.json"
    return RemoteRunManager(lambda news, log: ReconnectingConnection(spec, transport, cache_file, news, log))


def _transport(spec: HostSpec) -> Transport:
    """A connection that is kept for the next command, if there is a private place for its socket."""
    if spec.kind == "local":
        return LocalTransport()
    address = spec.address or spec.name
    if spec.persist and (place := mux.directory()) is not None:
        return mux.MuxTransport(place, address)
    # Not in the background as well: two threads that load modules at once only keep each other from it.
    import fabric  # type: ignore[import-untyped]  # noqa: F401

    from ci_tasks.hosts.ssh.connection import SSHConnection

    return SSHConnection(address)


@contextmanager
def open_query_runner(spec: HostSpec) -> Iterator[QueryRunner]:
    """The host, to be asked; this machine too."""
    if spec.kind == "local":
        yield LocalQueryRunner(spec.env)
        return
    remote_host = open_remote_host(spec)
    try:
        yield remote_host.connection
    finally:
        remote_host.close()


def run_state(remote_run: RemoteRun) -> RunState:
    """How a run on a host stands, in the words of an executor."""
    if remote_run.aborted:
        return RunState(aborted=remote_run.aborted)
    if remote_run.is_fetched:
        return RunState(is_complete=True, note=remote_run.warning)
    return RunState(
        has_started=remote_run.phase != SENDING, note="" if remote_run.phase == WATCHING else remote_run.phase
    )
