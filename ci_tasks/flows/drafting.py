"""The plan of a row for a host, and its run directory: made when the row is given to the host, not before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ci_tasks.flows.outputs import Found
from ci_tasks.flows.site import Prepared, Say
from ci_tasks.flows.source import Source
from ci_tasks.flows.stations import Needs, Station
from ci_tasks.judge.verdict import has_entry_point
from ci_tasks.model import Checkout, Row
from ci_tasks.plan.capacity import other_hosts
from ci_tasks.plan.planner import Drafted, Place, make_plan, wanted_python
from ci_tasks.runner.layout import RunDir
from ci_tasks.runs.store import Batch
from ci_tasks.suites.ray import starts_ray

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.flows.prepare import Request
    from ci_tasks.plan.planner import Setup


@dataclass(frozen=True)
class Drafts:
    """Everything that a command's plans have in common."""

    source: Source
    config: Config
    request: Request
    found: Found
    batch: Batch
    simulates: bool
    _with_ray: dict[str, bool] = field(default_factory=dict)  # by test: its modes are rows of their own

    def draft(self, row: Row, station: Station, number: int) -> Prepared:
        """Plan `row` for the host and write its run directory. Raises Blocked where the host cannot say enough."""
        run, site, spec = self.batch.run_dir(number), station.site, station.spec
        drafted = self._drafted(row, station, number)
        test = station.code.read(row.test) if row.test else None
        plan = replace(
            drafted.plan,
            deviations=(*drafted.plan.deviations, *self.found.deviations),
            exclusive=(*drafted.plan.exclusive, *_slot(self.request, row, station, number)),
            entry_point=has_entry_point(test or "") if row.test else None,
        )
        os.makedirs(run.path, exist_ok=True)
        site.write(run, plan)
        return Prepared(
            row=row,
            plan=plan,
            run=run,
            setup=drafted.setup,
            site=site,
            lacks=station.lacks(row),
            could=tuple(other_hosts(row, self.config.hosts, spec.name, self.simulates)),
        )

    def checkout(self, station: Station) -> Checkout:
        """The tree that runs there, as records name it."""
        return replace(station.code.checkout, sample=self.source.sample, rev=self.source.rev)

    def exclusive(self, row: Row, station: Station) -> tuple[str, ...]:
        """What the row cannot share with another row on the host: nothing, unless it starts Ray."""
        return self._drafted(row, station, 0).plan.exclusive if self._starts_ray(row, station) else ()

    def setups(self, rows: Sequence[Row], station: Station) -> list[Setup]:
        """The install steps that rows share on the host."""
        if not rows or self._drafted(rows[0], station, 1).setup is None:  # rows of one label have one job's steps
            return []
        return in_one_order(self._drafted(row, station, 1).setup for row in rows if not station.lacks(row))

    def python(self, row: Row) -> str:
        """The Python that CI sets up for the row."""
        return wanted_python(self.source.workflow, self.found.job, row, self.found.situation, self.config.overrides)

    def _drafted(self, row: Row, station: Station, number: int) -> Drafted:
        site, request = station.site, self.request
        run: RunDir = self.batch.run_dir(number)
        directory = site.path(run)
        known = replace(self.found.situation, workspace=f"{directory}/workspace")
        place = Place(
            id=self.batch.run_id(number),
            run_dir=directory,
            workspace=known.workspace,
            checkout=self.checkout(station),
            python=site.python(self.python(row)),
            environments=site.environments(shared=request.shared),
            lock_dir=site.lock_dir,
            starts_ray=self._starts_ray(row, station),
            keep=request.keep,
            image=request.image,
            nodes=request.nodes,
        )
        return make_plan(self.source.workflow, self.found.job, row, station.spec, known, self.config.overrides, place)

    def _starts_ray(self, row: Row, station: Station) -> bool:
        if self.request.by_runner:
            return True
        if not row.test or not row.gpus:
            return False
        if row.test not in self._with_ray:
            self._with_ray[row.test] = starts_ray(row.test, station.code.read)
        return self._with_ray[row.test]


def in_one_order(setups: Iterable[Setup | None]) -> list[Setup]:
    """Each of them once, so that two runs cannot wait for each other."""
    found = {setup.directory: setup for setup in setups if setup}
    return [setup for _, setup in sorted(found.items())]


def needs(drafts: Drafts, rows: Sequence[Row]) -> Needs:
    """What the rows want of any host."""
    image = drafts.request.image
    return Needs(
        gpus=max((row.gpus or 0 for row in rows), default=0),
        container=any(row.image for row in rows),
        simulates=drafts.simulates,
        python=drafts.python(rows[0]) if rows else "",
        images=_by_image(rows, image),
        setups=lambda station: drafts.setups(rows, station),
        stock=partial(_stock, drafts, rows) if drafts.request.prefetch else None,
    )


def _by_image(rows: Sequence[Row], given: str | None) -> dict[str, tuple[str, ...]]:
    """What rows run in, with their names; `given` replaces CI's images."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if row.image:
            image = given or row.image
            found[image] = (*found.get(image, ()), row.row)
    return found


def _stock(drafts: Drafts, rows: Sequence[Row], station: Station, say: Say) -> Mapping[str, str]:
    """Bring what the rows will download to the host; which of them would lack something, and why."""
    from ci_tasks.flows.prefetching import problems

    return problems(drafts.source, drafts.config, drafts.found, rows, station.spec, station.code.read, say)


def _slot(request: Request, row: Row, station: Station, number: int) -> tuple[str, ...]:
    """The place in which a row without GPUs runs. Detached runs share the places, so that no host is swamped."""
    counts = request.slots and not row.gpus and not station.site.queues
    return (f"cpu-{number % request.slots}",) if counts else ()
