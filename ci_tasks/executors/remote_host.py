"""Boxes as flows speak of them: connecting to one, the code that goes there, and how a run there stands.

This module is loaded before all else of a command: see ci_tasks.executors.ssh_executor.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.config import HostSpec
from ci_tasks.executors.executor import RunState
from ci_tasks.executors.queries import LocalQueryRunner, QueryRunner
from ci_tasks.executors.remote import host_cache
from ci_tasks.executors.remote.reconnecting import ReconnectingConnection
from ci_tasks.executors.remote.remote_run import SENDING, WATCHING, RemoteRun
from ci_tasks.executors.remote.run_manager import RemoteRunManager
from ci_tasks.executors.ssh.connection import connect
from ci_tasks.records import Checkout
from ci_tasks.results import store

if TYPE_CHECKING:
    from ci_tasks.checkout.snapshot import Snapshot


@dataclass(frozen=True)
class RemoteSnapshot:
    """A snapshot that goes to the host as a pack."""

    checkout: Checkout
    snapshot: Snapshot

    def read_file(self, path: str) -> str | None:
        content = self.snapshot.read(path)
        return None if content is None else content.decode(errors="replace")

    def read_files(self, directory: str, suffix: str) -> Iterator[str]:
        for name in self.snapshot.names(directory, suffix):
            yield self.read_file(name) or ""


def open_remote_host(spec: HostSpec) -> RemoteRunManager:
    """The host, being connected to in the background."""
    # Not in the background as well: two threads that load modules at once only keep each other from it.
    import fabric  # type: ignore[import-untyped]  # noqa: F401

    cache_file = store.home() / "hosts" / f"{host_cache.key(spec)}.json"
    return RemoteRunManager(
        lambda news, log: ReconnectingConnection(
            spec, partial(connect, spec.address or spec.name), cache_file, news, log
        )
    )


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


def take_host_snapshot(source: Path, rev: str | None, base: str | None) -> Snapshot:
    """The working tree of `source`, or its revision, as objects that can be sent."""
    from ci_tasks.checkout.snapshot import take_snapshot

    name = hashlib.sha256(os.fsencode(source)).hexdigest()[:16]
    return take_snapshot(source, store.home() / "sync" / name, rev=rev, base=base)


def run_state(remote_run: RemoteRun) -> RunState:
    """How a run on a host stands, in the words of a site."""
    if remote_run.aborted:
        return RunState(aborted=remote_run.aborted)
    if remote_run.is_fetched:
        return RunState(is_complete=True, note=remote_run.warning)
    return RunState(
        has_started=remote_run.phase != SENDING, note="" if remote_run.phase == WATCHING else remote_run.phase
    )
