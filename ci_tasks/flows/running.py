"""`run`, `remote` and `plan`: the two stories of a label."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ci_tasks.config import Config
from ci_tasks.flows import environment
from ci_tasks.flows.execute import none_begun, run_rows
from ci_tasks.flows.prepare import Prepared, Ready, Request, check_out, prepare
from ci_tasks.flows.source import Source
from ci_tasks.flows.view import View, open_view
from ci_tasks.model import BLOCKED, CANCELLED, EXIT_CODES, VACUOUS, overall
from ci_tasks.report import table
from ci_tasks.suites.slime import CHANGED
from ci_tasks.sync.snapshot import BASE


def run(source: Source, config: Config, request: Request, *, jobs: int | None, reuse: bool) -> int:
    """Run a label's rows and end with a truthful table. Returns the exit code of design's statuses."""
    print(source.headline, flush=True)
    ready = prepare(source, config, request)
    if not ready.rows:
        return _nothing(request, ready)
    print(_announcement(ready), flush=True)
    view = open_view(f"{request.label} on {request.host}", [row.run for row in ready.rows])
    try:
        records = _with_environments(config, ready, request, jobs, reuse, view)
    finally:
        view.close()
        shutil.rmtree(ready.batch.source, ignore_errors=True)
    return _conclude(records, ready)


def plan(source: Source, config: Config, request: Request) -> list[dict[str, Any]]:
    """Write the run directories that `run` would execute, with their checkouts. Returns their plans."""
    ready = prepare(source, config, replace(request, shared=False))
    host = config.host(request.host)
    if not ready.rows:
        shutil.rmtree(ready.batch.path, ignore_errors=True)
    for row in ready.rows:
        if row.setup is None:
            check_out(row.plan.workspace, ready.batch)
        elif not os.path.exists(row.setup.workspace):
            environment.write(row.setup, host)
            check_out(row.setup.workspace, ready.batch)
    return [{**row.plan.public(), "run_dir": row.run.path, "lacks": list(row.lacks)} for row in ready.rows]


def _with_environments(
    config: Config, ready: Ready, request: Request, jobs: int | None, reuse: bool, view: View
) -> list[dict[str, Any]]:
    setups = {row.setup.directory: row.setup for row in ready.rows if row.setup and not row.lacks}
    with ExitStack() as stack:
        for _, setup in sorted(setups.items()):  # in one order, so that two runs cannot wait for each other
            stack.enter_context(environment.held(setup, view.say))
            try:
                problem = environment.make_ready(setup, ready.batch, config.host(request.host), reuse, view.say)
            except KeyboardInterrupt:
                return none_begun(ready.rows, CANCELLED, "cancelled during the install steps")
            if problem:
                return none_begun(ready.rows, BLOCKED, problem)
        return run_rows(ready, _at_once(ready.rows, jobs), view)


def _at_once(rows: Sequence[Prepared], jobs: int | None) -> int:
    """As many as asked for; else as many CPU rows as there are cores, and as many GPU rows as there are GPUs for."""
    if jobs:
        return jobs
    return len(rows) if any(row.plan.gpus for row in rows) else (os.cpu_count() or 1)


def _announcement(ready: Ready) -> str:
    checkout = ready.rows[0].plan.checkout
    many = "" if len(checkout.dirty) == 1 else "s"
    dirty = f", {len(checkout.dirty)} uncommitted file{many}" if checkout.dirty else ""
    count = f"{len(ready.rows)} row{'' if len(ready.rows) == 1 else 's'}"
    return f"run {ready.batch.id}: {count} of commit {checkout.commit[:12]}{dirty}, tree {checkout.tree[:12]}"


def _conclude(records: list[dict[str, Any]], ready: Ready) -> int:
    status = overall([record["status"] for record in records])
    logs = [row.run.log for row in ready.rows]
    lines = ["", *table.results(records, logs), "", *table.deviations(records), ""]
    print("\n".join(lines))
    print(f"{ready.batch.id}: {table.summary(records)}", flush=True)
    return EXIT_CODES[status]


def _nothing(request: Request, ready: Ready) -> int:
    shutil.rmtree(ready.batch.path, ignore_errors=True)
    why = f"label {request.label} has no row here"
    if request.label == CHANGED:
        why = f"no test file is new or modified since {request.base or BASE}"
    print(f"{VACUOUS}: {why}; nothing ran, so nothing is shown")
    return EXIT_CODES[VACUOUS]
