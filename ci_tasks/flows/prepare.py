"""From a label to run directories: the part that `plan` and `run` share, so that what is shown is what runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UnknownName, UsageError
from ci_tasks.flows.drafting import Drafts, in_one_order, needs
from ci_tasks.flows.journal import Journal
from ci_tasks.flows.outputs import find_rows
from ci_tasks.flows.site import Code, OpenSite, Prepared, Site
from ci_tasks.flows.source import Source, given_secrets, situation
from ci_tasks.flows.stations import Station, ask
from ci_tasks.model import Checkout, Row
from ci_tasks.plan.machinery import LOCK_DIR_ENV
from ci_tasks.plan.planner import Setup
from ci_tasks.plan.steps import check_overrides
from ci_tasks.runs import store
from ci_tasks.runs.store import Batch
from ci_tasks.suites import slime
from ci_tasks.sync.git import Git


@dataclass(frozen=True)
class Request:
    """What a person asked for. `host` names hosts and pools with commas between them. `out` is where `plan` writes,
    `shared` says that venvs are those of earlier runs too, `keep` that a failed run leaves its container and
    workspace. `image` replaces CI's.
    `rows` are whole names, and count instead of `only` where there are any.
    `by_runner`: the rows take no GPU locks themselves, so the runner does, and they start Ray.
    `slots` is how many rows without GPUs may run at once where nobody is there to start them one after another,
    `nodes` over how many nodes of a cluster each row runs. `prefetch`: what they will download comes first."""

    label: str
    only: str | None = None
    host: str = "local"
    base: str | None = None
    out: Path | None = None
    shared: bool = True
    keep: bool = False
    image: str | None = None
    rows: tuple[str, ...] = ()
    by_runner: bool = False
    slots: int = 0
    nodes: int = 1
    prefetch: bool = False


@dataclass(frozen=True)
class Ready:
    """All rows of one command, and the hosts that take part. `drafted` are the plans that there are already, by the
    row's position: with one host it is clear where each row runs."""

    batch: Batch
    rows: tuple[Row, ...]
    stations: tuple[Station, ...]
    drafts: Drafts
    drafted: dict[int, Prepared] = field(default_factory=dict)

    @property
    def checkout(self) -> Checkout:
        return self.drafts.checkout(self.stations[0])

    def setups(self) -> list[Setup]:
        """The install steps that rows share on the one host. Plans that there are already need not be made again."""
        if self.drafted:
            return in_one_order(row.setup for row in self.drafted.values() if not row.lacks)
        return self.drafts.setups(self.rows, self.stations[0])

    def close(self) -> None:
        for station in self.stations:
            station.site.close()


def prepare(
    source: Source, config: Config, request: Request, open_site: OpenSite, journal: Journal | None = None
) -> Ready:
    """Find every row that was asked for, or those of an earlier command, and its hosts. Leaves nothing where it
    raises, but for what an earlier command left."""
    specs = config.chosen(request.host)
    check_overrides(config.overrides, source.workflow.jobs)
    if request.out is None:
        _home_is_elsewhere(source)
    sites = [open_site(spec) for spec in specs]  # connections are being made while the rows are found
    try:
        known = situation(source, secrets=given_secrets(source.workflow))
        found = find_rows(source, request.label, known, request.base)
        chosen = _chosen(found.rows, request)
        batch = journal.batch if journal else store.new_batch(request.label, request.out)
        try:
            stations = _stations(sites, source, request, batch)
            code = stations[0].code
            _tests_exist(chosen, code)
            found = replace(found, situation=replace(found.situation, sha=code.checkout.commit))
            drafts = Drafts(source, config, request, found, batch, request.by_runner or _simulates(code))
            ready = Ready(batch, tuple(chosen), stations, drafts)
            if len(stations) == 1 and chosen:
                _settle_on(stations[0], ready, journal)
            return ready
        except BaseException:
            if journal is None:
                shutil.rmtree(batch.path, ignore_errors=True)
            raise
    except BaseException:
        for site in sites:
            site.close()
        raise


def _stations(sites: Sequence[Site], source: Source, request: Request, batch: Batch) -> tuple[Station, ...]:
    """The hosts, with the code that all of them get: one tree, whatever is edited meanwhile."""
    stations: list[Station] = []
    for site in sites:
        if stations:
            site.share(stations[0].code)
        station = Station(site, site.take(batch, source.path, rev=source.rev, base=request.base))
        if stations and station.code.checkout.tree != stations[0].code.checkout.tree:
            raise CheckoutError(f"{source.path} changed while it was recorded for several hosts", hint="run it again")
        stations.append(station)
    return tuple(stations)


def _settle_on(station: Station, ready: Ready, journal: Journal | None) -> None:
    """With one host, all rows are planned before the first begins, and what the host lacks is known. Raises Blocked."""
    wanted = needs(ready.drafts, ready.rows)
    station.facts = ask(station, wanted)
    if wanted.stock:
        station.without = wanted.stock(station, partial(print, flush=True))
    station.is_ready, station.note = True, ""
    if journal is None:
        for position, row in enumerate(ready.rows):
            ready.drafted[position] = ready.drafts.draft(row, station, position + 1)


def _chosen(found: list[Row], request: Request) -> list[Row]:
    if not request.rows:
        return slime.select(found, request.only, request.label)
    for name in request.rows:
        if all(row.row != name for row in found):
            raise UnknownName("row", name, [row.row for row in found], where=f"label {request.label}")
    return [row for row in found if row.row in request.rows]


def _home_is_elsewhere(source: Source) -> None:
    """Runs kept in the checkout would be part of the next run's working tree, unless git ignores them."""
    home = store.home()
    if (
        home.is_relative_to(source.path)
        and Git(source.path).maybe("check-ignore", "--quiet", str(home / "runs")) is None
    ):
        raise UsageError(
            f"{store.HOME_ENV} is {home}, inside the checkout, and no command writes there",
            hint="name a directory elsewhere, or have git ignore this one",
        )


def _tests_exist(chosen: Sequence[Row], code: Code) -> None:
    for row in chosen:
        if row.test and code.read(row.test) is None:
            raise CheckoutError(
                f"row {row.row} of label {row.label} runs {row.test}, which is not in the checkout",
                hint="it is not committed, and not an untracked file either: is it ignored, or was it renamed?",
            )


def _simulates(code: Code) -> bool:
    """Whether the checkout's lock script keeps pretend GPUs' locks away from the real ones."""
    return any(LOCK_DIR_ENV in text for text in code.texts("tests/ci", ".py"))
