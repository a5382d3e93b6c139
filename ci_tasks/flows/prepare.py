"""From a label to run directories: the part that `plan` and `run` share, so that what is shown is what runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UnknownName, UsageError
from ci_tasks.flows.outputs import Found, find_rows
from ci_tasks.flows.site import Code, OpenSite, Prepared, Site
from ci_tasks.flows.source import Source, given_secrets, situation
from ci_tasks.judge.verdict import has_entry_point
from ci_tasks.model import Row
from ci_tasks.plan.capacity import missing, other_hosts
from ci_tasks.plan.machinery import LOCK_DIR_ENV
from ci_tasks.plan.planner import Place, make_plan, wanted_python
from ci_tasks.plan.steps import check_overrides
from ci_tasks.runs import store
from ci_tasks.runs.store import Batch
from ci_tasks.suites import slime
from ci_tasks.suites.ray import starts_ray
from ci_tasks.sync.git import Git


@dataclass(frozen=True)
class Request:
    """What a person asked for. `out` is where `plan` writes, `shared` says that venvs are those of earlier runs too,
    `keep` that a failed run leaves its container and workspace. `image` replaces CI's.
    `rows` are whole names, and count instead of `only` where there are any.
    `by_runner`: the rows take no GPU locks themselves, so the runner does, and they start Ray.
    `slots` is how many rows without GPUs may run at once where nobody is there to start them one after another."""

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


@dataclass(frozen=True)
class Ready:
    """All rows of one command, and how many GPUs their host has."""

    batch: Batch
    site: Site
    rows: list[Prepared]
    gpus: int


def prepare(source: Source, config: Config, request: Request, open_site: OpenSite) -> Ready:
    """Plan every row that was asked for and write its run directory. Leaves nothing where it raises."""
    spec = config.host(request.host)
    check_overrides(config.overrides, source.workflow.jobs)
    if request.out is None:
        _home_is_elsewhere(source)
    site = open_site(spec)  # a connection is being made while the rows are found
    try:
        known = situation(source, secrets=given_secrets(source.workflow))
        found = find_rows(source, request.label, known, request.base)
        chosen = _chosen(found.rows, request)
        batch = store.new_batch(request.label, request.out)
        try:
            code = site.take(batch, source.path, rev=source.rev, base=request.base)
            _tests_exist(chosen, code)
            found = replace(found, situation=replace(found.situation, sha=code.checkout.commit))
            return _draft(source, config, request, found, chosen, batch, site, code)
        except BaseException:
            shutil.rmtree(batch.path, ignore_errors=True)
            raise
    except BaseException:
        site.close()
        raise


def _chosen(found: list[Row], request: Request) -> list[Row]:
    if not request.rows:
        return slime.select(found, request.only, request.label)
    for name in request.rows:
        if all(row.row != name for row in found):
            raise UnknownName("row", name, [row.row for row in found], where=f"label {request.label}")
    return [row for row in found if row.row in request.rows]


def _draft(
    source: Source,
    config: Config,
    request: Request,
    found: Found,
    chosen: Sequence[Row],
    batch: Batch,
    site: Site,
    code: Code,
) -> Ready:
    spec, simulates = site.spec, request.by_runner or _simulates(code)
    facts = site.facts(
        gpus=max((row.gpus or 0 for row in chosen), default=0),
        container=any(row.image for row in chosen),
        simulates=simulates,
    )
    prepared = []
    for number, row in enumerate(chosen, 1):
        run = batch.run_dir(number)
        directory = site.path(run)
        known = replace(found.situation, workspace=f"{directory}/workspace")
        place = Place(
            id=batch.run_id(number),
            run_dir=directory,
            workspace=known.workspace,
            checkout=replace(code.checkout, sample=source.sample, rev=source.rev),
            python=site.python(wanted_python(source.workflow, found.job, row, known, config.overrides)),
            environments=site.environments(shared=request.shared),
            lock_dir=site.lock_dir,
            starts_ray=request.by_runner or (bool(row.test and row.gpus) and starts_ray(row.test or "", code.read)),
            keep=request.keep,
            image=request.image,
        )
        drafted = make_plan(source.workflow, found.job, row, spec, known, config.overrides, place)
        plan = replace(
            drafted.plan,
            deviations=(*drafted.plan.deviations, *found.deviations),
            exclusive=(*drafted.plan.exclusive, *_slot(request, row, number)),
            entry_point=has_entry_point(code.read(row.test) or "") if row.test else None,
        )
        os.makedirs(run.path)
        site.write(run, plan)
        prepared.append(
            Prepared(
                row=row,
                plan=plan,
                run=run,
                setup=drafted.setup,
                lacks=tuple(missing(row, spec, facts)),
                could=tuple(other_hosts(row, config.hosts, spec.name, simulates)),
            )
        )
    return Ready(batch, site, prepared, facts.gpus)


def _slot(request: Request, row: Row, number: int) -> tuple[str, ...]:
    """The place in which a row without GPUs runs. Detached runs share the places, so that no host is swamped."""
    return (f"cpu-{number % request.slots}",) if request.slots and not row.gpus else ()


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
