"""`run`, `remote` and `plan`: the two stories of a label."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import UsageError
from ci_tasks.flows.course import Course, Policy, statuses
from ci_tasks.flows.detaching import let_go
from ci_tasks.flows.drafting import needs
from ci_tasks.flows.execute import run_rows
from ci_tasks.flows.journal import Journal, unfinished
from ci_tasks.flows.journal import write as begin
from ci_tasks.flows.prepare import Ready, Request, prepare
from ci_tasks.flows.resuming import same_tree
from ci_tasks.flows.site import OpenSite
from ci_tasks.flows.sites import open_site
from ci_tasks.flows.source import Source
from ci_tasks.flows.stations import Stations
from ci_tasks.flows.view import View, open_view
from ci_tasks.model import BLOCKED, CANCELLED, EXIT_CODES, VACUOUS, Row, overall
from ci_tasks.plan.schedule import expected
from ci_tasks.report import junit, table, timeline
from ci_tasks.runs import store
from ci_tasks.runs.history import durations
from ci_tasks.runs.record import not_begun
from ci_tasks.suites.slime import CHANGED
from ci_tasks.sync.snapshot import BASE

_PRETENDED = 10.0  # seconds


@dataclass(frozen=True)
class Performed:
    """One run of a label. `records` is in the order of `logs`, and empty where the rows go on without us; `sites` are
    the hosts that took part, with their GPUs."""

    batch: str
    records: list[dict[str, Any]]
    logs: list[str]
    sites: Mapping[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[overall(statuses(self.records))]


@dataclass(frozen=True)
class How:
    """How a label's rows are run: `jobs` at once on a host, venvs used again with `reuse`, left to themselves with
    `detach`. `resume` goes on with the newest command of the label that was left."""

    jobs: int | None = None
    reuse: bool = False
    detach: bool = False
    policy: Policy = field(default_factory=Policy)
    resume: bool = False


def run(source: Source, config: Config, request: Request, how: How, *, open_site: OpenSite = open_site) -> int:
    """Run a label's rows and end with a truthful table. Returns the exit code of design's statuses."""
    print(source.headline, flush=True)
    done = perform(source, config, request, how, open_site=open_site)
    if done is None:
        return EXIT_CODES[VACUOUS]
    if how.detach and not done.records:
        print(f"{done.batch}: the rows go on on {request.host}; `ci-tasks attach {done.batch}` brings them home")
        return 0
    also = [f"JUnit of all rows: {_write_junit(done)}"] if len(done.records) > 1 else []
    return conclude(done.records, done.logs, done.batch, done.sites, also)


def perform(
    source: Source,
    config: Config,
    request: Request,
    how: How = How(),
    *,
    open_site: OpenSite = open_site,
    view: View | None = None,
) -> Performed | None:
    """Run a label's rows, telling how it goes, through `view` where one is given. None where there is no row, which it
    says."""
    if how.detach and len(config.chosen(request.host)) > 1:
        raise UsageError(
            f"--detach is for one host, and {request.host} is several",
            hint="without it, the terminal may be closed at any time: `--resume` comes back to all rows",
        )
    journal = unfinished(request.label, str(source.path)) if how.resume else None
    if journal:
        request = replace(request, rows=journal.rows, only=None)
    ready = prepare(source, config, request, open_site, journal)
    if not ready.rows:
        _nothing(request, ready)
        return None
    try:
        if journal:
            same_tree(journal, ready.checkout.tree)
        else:
            begin(ready.batch, request.label, request.host, [row.row for row in ready.rows], ready.checkout)
        if view is None:
            print(_announcement(ready), flush=True)
            view = _view(request, ready)
        try:
            records, logs = _perform(ready, how, view, journal)
        finally:
            view.close()
    finally:
        ready.close()
    sites = {
        station.name: station.facts.gpus for station in ready.stations if station.facts and not station.site.queues
    }
    return Performed(ready.batch.id, records, logs, sites)


def _perform(ready: Ready, how: How, view: View, journal: Journal | None) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows' records and logs; none for rows that go on without us."""
    known = durations(ready.rows[0].label, hosts=[station.name for station in ready.stations])
    pretends = not known and all(station.spec.simulate for station in ready.stations)
    expected = partial(_expected, known, pretends)
    if len(ready.stations) > 1:
        with Stations(ready.stations, needs(ready.drafts, ready.rows), how.reuse) as hosts:
            courses = run_rows(ready, how.jobs, view, how.policy, expected, hosts, journal)
        return _results(courses)
    station = ready.stations[0]
    try:
        with station.site.ready(ready.setups(), how.reuse, view.say) as problem:
            if problem and journal is None:
                return _none_begun(ready, BLOCKED, problem)
            station.problem = problem or ""  # rows that an earlier command began go on
            if how.detach:
                return let_go(ready, view), [ready.drafted[at].run.log for at in range(len(ready.rows))]
            return _results(run_rows(ready, how.jobs, view, how.policy, expected, None, journal))
    except KeyboardInterrupt:
        if journal:
            raise
        return _none_begun(ready, CANCELLED, "cancelled during the install steps")


def _results(courses: Sequence[Course]) -> tuple[list[dict[str, Any]], list[str]]:
    return [course.record for course in courses if course.record is not None], [course.log for course in courses]


def _none_begun(ready: Ready, status: str, reason: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of rows that never began, all for one reason."""
    rows = [row for _, row in sorted(ready.drafted.items())]
    return [not_begun(row.run, status, reason) for row in rows], [row.run.log for row in rows]


def _expected(known: Mapping[str, float], pretends: bool, row: Row) -> float:
    """What nobody has seen yet trains for seconds on pretend GPUs."""
    return _PRETENDED if pretends else expected(row.row, known, row.gpus or 0)


def _view(request: Request, ready: Ready) -> View:
    only = ready.drafted[0].run if len(ready.rows) == 1 and len(ready.stations) == 1 and ready.drafted else None
    return open_view(f"{request.label} on {request.host}", [only] if only else [])


def plan(source: Source, config: Config, request: Request) -> list[dict[str, Any]]:
    """Write the run directories that `run` would execute, with their checkouts. Returns their plans."""
    if len(config.chosen(request.host)) > 1:
        raise UsageError(
            f"plan is for one host, and {request.host} is several: which row runs where is decided when GPUs are free",
            hint="`invoke remote --explain` says each decision",
        )
    ready = prepare(source, config, replace(request, shared=False), open_site)
    if not ready.rows:
        shutil.rmtree(ready.batch.path, ignore_errors=True)
    rows = [row for _, row in sorted(ready.drafted.items())]
    ready.stations[0].site.hand_over(rows)
    return [{**row.plan.public(), "run_dir": row.run.path, "lacks": list(row.lacks)} for row in rows]


def _announcement(ready: Ready) -> str:
    checkout = ready.checkout
    many = "" if len(checkout.dirty) == 1 else "s"
    dirty = f", {len(checkout.dirty)} uncommitted file{many}" if checkout.dirty else ""
    count = f"{len(ready.rows)} row{'' if len(ready.rows) == 1 else 's'}"
    return f"run {ready.batch.id}: {count} of commit {checkout.commit[:12]}{dirty}, tree {checkout.tree[:12]}"


def conclude(
    records: list[dict[str, Any]],
    logs: Sequence[str],
    name: str,
    sites: Mapping[str, int] | None = None,
    also: Sequence[str] = (),
) -> int:
    """Print the table that ends a run, then what is `also` to be said. Returns its exit code."""
    counts = any(record["gpus"] for record in records) or len(sites or {}) > 1
    times = timeline.closing(records, sites or {}) if counts else []
    lines = [
        "",
        *table.results(records, logs),
        "",
        *table.deviations(records),
        "",
        *times,
        *([""] if times else []),
        *also,
    ]
    print("\n".join(lines))
    print(f"{name}: {table.summary(records)}", flush=True)
    return EXIT_CODES[overall(statuses(records))]


def _write_junit(done: Performed) -> str:
    """Returns where it is, or why there is none: a full disk changes no result."""
    path = store.home() / "runs" / done.batch / "junit.xml"
    try:
        path.write_text(junit.render(done.batch, done.records, done.logs), encoding="utf-8")
    except OSError as error:
        return f"could not be written ({error.strerror})"
    return str(path)


def _nothing(request: Request, ready: Ready) -> None:
    shutil.rmtree(ready.batch.path, ignore_errors=True)
    why = f"label {request.label} has no row here"
    if request.label == CHANGED:
        why = f"no test file is new or modified since {request.base or BASE}"
    print(f"{VACUOUS}: {why}; nothing ran, so nothing is shown")
