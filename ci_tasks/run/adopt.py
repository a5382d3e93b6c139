"""Runs on a host that another client began, each with a directory here from now on.

What the host says of such a run is kept as claims: it is shown and judged. What the directory here is called, what may
be removed here and where the run is follows from what this client knows itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from ci_tasks.agent.run_directory import RunDir, read_remote, write_record
from ci_tasks.agent.serving.messages import DescribeRun, ListRuns, RunSummary
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked, UnknownName, UsageError
from ci_tasks.hosts.connection import ReconnectingConnection
from ci_tasks.hosts.remote_run import write_remote_location
from ci_tasks.results import store

_MAX_LISTED = 10
_CLIENT = re.compile(r"-[0-9a-f]{6}$")  # the end of a batch's directory on a host: see store.client_id


def adopt_runs(name: str, spec: HostSpec) -> list[tuple[str, RunDir]]:
    """The runs of the host by that name. Raises UnknownName, UsageError, Blocked."""
    from ci_tasks.hosts.run_manager import open_remote_host

    if spec.kind == "local":
        raise UsageError(f"host {spec.name} is this machine", hint="its runs are known without --host")
    with closing(open_remote_host(spec)) as manager:
        listed = list({run.dir: run for run in manager.connection.request(ListRuns()).runs if run.is_row}.values())
        adopted = [(run.id, _adopt(run, spec, manager.connection)) for run in listed if _is_called(run, name)]
    if not adopted:
        raise UnknownName("run", name, _newest(listed), where=f"host {spec.name}")
    return adopted


def _is_called(run: RunSummary, name: str) -> bool:
    """Whoever began it knows it without the end of its batch's name."""
    ids = (run.id, f"{_CLIENT.sub('', run.batch)}.{run.number}")
    return any(f"{id}.".startswith(f"{name}.") for id in ids)


def _adopt(remote_run: RunSummary, spec: HostSpec, connection: ReconnectingConnection) -> RunDir:
    run = RunDir(str(store.home() / "runs" / remote_run.batch / remote_run.number))
    if os.path.lexists(run.path):
        _check_same(run, remote_run, spec)
    if not os.path.exists(run.claims):
        claims = connection.request(DescribeRun(remote_run.dir)).description
        write_remote_location(run, spec, remote_run.dir, adopted=True)
        write_record(run.claims, replace(claims, id=remote_run.id, host=spec.name))
    return run


def _check_same(run: RunDir, remote_run: RunSummary, spec: HostSpec) -> None:
    remote = read_remote(run)
    if remote is None or not remote.adopted or remote.directory != remote_run.dir:
        raise Blocked(
            f"host {spec.name} has a run {remote_run.id}, and another one by that name is here: {run.path}",
            hint="`ci-tasks clean --days N` removes old runs from this machine",
        )


def _newest(runs: Sequence[RunSummary]) -> list[str]:
    return sorted({run.id for run in runs}, reverse=True)[:_MAX_LISTED]
