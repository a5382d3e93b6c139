"""`run`, `remote` and `plan`: the two stories of a label."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ci_tasks.config import Config
from ci_tasks.flows.execute import let_go, none_begun, run_rows
from ci_tasks.flows.prepare import Ready, Request, prepare
from ci_tasks.flows.site import OpenSite, Prepared
from ci_tasks.flows.sites import open_site
from ci_tasks.flows.source import Source
from ci_tasks.flows.view import View, open_view
from ci_tasks.model import BLOCKED, CANCELLED, EXIT_CODES, VACUOUS, overall
from ci_tasks.report import table
from ci_tasks.suites.slime import CHANGED
from ci_tasks.sync.snapshot import BASE


@dataclass(frozen=True)
class Performed:
    """One run of a label. `records` is in the order of `logs`, and empty where the rows go on without us."""

    batch: str
    records: list[dict[str, Any]]
    logs: list[str]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[overall([record["status"] for record in self.records])]


def run(
    source: Source,
    config: Config,
    request: Request,
    *,
    jobs: int | None,
    reuse: bool,
    detach: bool = False,
    open_site: OpenSite = open_site,
) -> int:
    """Run a label's rows and end with a truthful table. Returns the exit code of design's statuses."""
    print(source.headline, flush=True)
    done = perform(source, config, request, jobs=jobs, reuse=reuse, detach=detach, open_site=open_site)
    if done is None:
        return EXIT_CODES[VACUOUS]
    if detach and not done.records:
        print(f"{done.batch}: the rows go on on {request.host}; `ci-tasks attach {done.batch}` brings them home")
        return 0
    return conclude(done.records, done.logs, done.batch)


def perform(
    source: Source,
    config: Config,
    request: Request,
    *,
    jobs: int | None = None,
    reuse: bool = False,
    detach: bool = False,
    open_site: OpenSite = open_site,
    view: View | None = None,
) -> Performed | None:
    """Run a label's rows, telling how it goes, through `view` where one is given. None where there is no row, which it
    says."""
    ready = prepare(source, config, request, open_site)
    if not ready.rows:
        _nothing(request, ready)
        return None
    if view is None:
        print(_announcement(ready), flush=True)
        view = open_view(f"{request.label} on {request.host}", [row.run for row in ready.rows])
    try:
        records = _with_environments(ready, jobs, reuse, view, detach)
    finally:
        view.close()
        ready.site.close()
    return Performed(ready.batch.id, records, [row.run.log for row in ready.rows])


def plan(source: Source, config: Config, request: Request) -> list[dict[str, Any]]:
    """Write the run directories that `run` would execute, with their checkouts. Returns their plans."""
    ready = prepare(source, config, replace(request, shared=False), open_site)
    if not ready.rows:
        shutil.rmtree(ready.batch.path, ignore_errors=True)
    ready.site.hand_over(ready.rows)
    return [{**row.plan.public(), "run_dir": row.run.path, "lacks": list(row.lacks)} for row in ready.rows]


def _with_environments(ready: Ready, jobs: int | None, reuse: bool, view: View, detach: bool) -> list[dict[str, Any]]:
    """The records of the rows; none for rows that go on without us."""
    setups = {row.setup.directory: row.setup for row in ready.rows if row.setup and not row.lacks}
    in_one_order = [setup for _, setup in sorted(setups.items())]  # so that two runs cannot wait for each other
    try:
        with ready.site.ready(in_one_order, reuse, view.say) as problem:
            if problem:
                return none_begun(ready.rows, BLOCKED, problem)
            if detach:
                return let_go(ready, view)
            return run_rows(ready, _at_once(ready.rows, jobs), view)
    except KeyboardInterrupt:
        return none_begun(ready.rows, CANCELLED, "cancelled during the install steps")


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


def conclude(records: list[dict[str, Any]], logs: Sequence[str], name: str) -> int:
    """Print the table that ends a run. Returns its exit code."""
    lines = ["", *table.results(records, logs), "", *table.deviations(records), ""]
    print("\n".join(lines))
    print(f"{name}: {table.summary(records)}", flush=True)
    return EXIT_CODES[overall([record["status"] for record in records])]


def _nothing(request: Request, ready: Ready) -> None:
    shutil.rmtree(ready.batch.path, ignore_errors=True)
    why = f"label {request.label} has no row here"
    if request.label == CHANGED:
        why = f"no test file is new or modified since {request.base or BASE}"
    print(f"{VACUOUS}: {why}; nothing ran, so nothing is shown")
