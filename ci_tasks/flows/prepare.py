"""From a label to run directories: the part that `plan` and `run` share, so that what is shown is what runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.flows.outputs import Found, find_rows
from ci_tasks.flows.source import Source, given_secrets, situation
from ci_tasks.hosts import local, probe, python
from ci_tasks.model import Checkout, HostSpec, Plan, Row
from ci_tasks.plan.capacity import missing, other_hosts
from ci_tasks.plan.planner import LOCK_DIR_ENV, Place, Setup, make_plan, wanted_python
from ci_tasks.plan.steps import check_overrides
from ci_tasks.runner.layout import RunDir
from ci_tasks.runs import store
from ci_tasks.runs.store import Batch
from ci_tasks.suites import slime
from ci_tasks.sync.git import Git
from ci_tasks.sync.snapshot import BASE, materialize


@dataclass(frozen=True)
class Prepared:
    """A row ready to start: its plan, directory and setup. `lacks` says why it cannot run here."""

    row: Row
    plan: Plan
    run: RunDir
    setup: Setup | None
    lacks: tuple[str, ...] = ()
    could: tuple[str, ...] = ()
    test_source: str | None = None


@dataclass(frozen=True)
class Request:
    """What a person asked for. `out` is where `plan` writes; `shared` says that venvs are those of earlier runs too."""

    label: str
    only: str | None = None
    host: str = "local"
    base: str | None = None
    out: Path | None = None
    shared: bool = True


@dataclass(frozen=True)
class Ready:
    """All rows of one command, and how many GPUs their host has."""

    batch: Batch
    rows: list[Prepared]
    gpus: int


def prepare(source: Source, config: Config, request: Request) -> Ready:
    """Plan every row that was asked for and write its run directory. Leaves nothing where it raises."""
    host = _host(config, request.host)
    check_overrides(config.overrides, source.workflow.jobs)
    if request.out is None:
        _home_is_elsewhere(source)
    known = situation(source, secrets=given_secrets(source.workflow))
    found = find_rows(source, request.label, known, request.base)
    chosen = slime.select(found.rows, request.only, request.label)
    batch = store.new_batch(request.label, request.out)
    try:
        checkout = materialize(source.path, batch.source, rev=source.rev, base=request.base)
        checkout = replace(checkout, sample=source.sample)
        _tests_exist(chosen, batch.source)
        drafted = replace(found, situation=replace(found.situation, sha=checkout.commit))
        environments = store.environments() if request.shared else batch.environments
        return _draft(source, config, host, drafted, chosen, batch, checkout, environments)
    except BaseException:
        shutil.rmtree(batch.path, ignore_errors=True)
        raise


def check_out(workspace: str, batch: Batch) -> None:
    """A clone of the batch's tree: every row of it gets the same one, whatever is edited meanwhile."""
    has_base = Git(batch.source).maybe("rev-parse", "--verify", "--quiet", BASE)
    materialize(batch.source, Path(workspace), rev="HEAD", base=BASE if has_base else None)


def _draft(
    source: Source,
    config: Config,
    host: HostSpec,
    found: Found,
    chosen: Sequence[Row],
    batch: Batch,
    checkout: Checkout,
    environments: Path,
) -> Ready:
    simulates = _simulates(batch.source)
    facts = probe.facts(
        host,
        gpus=any(row.gpus for row in chosen),
        container=any(row.image for row in chosen),
        simulates=simulates,
    )
    interpreters: dict[str, tuple[str, str]] = {}
    prepared = []
    for number, row in enumerate(chosen, 1):
        run = batch.run_dir(number)
        known = replace(found.situation, workspace=os.path.join(run.path, "workspace"))
        wanted = wanted_python(source.workflow, found.job, row, known, config.overrides)
        if wanted not in interpreters:
            interpreters[wanted] = python.find(wanted)
        place = Place(
            id=batch.run_id(number),
            run_dir=run.path,
            workspace=known.workspace,
            checkout=checkout,
            python=interpreters[wanted],
            environments=str(environments),
            lock_dir=str(store.lock_dir()),
        )
        drafted = make_plan(source.workflow, found.job, row, host, known, config.overrides, place)
        plan = replace(drafted.plan, deviations=(*drafted.plan.deviations, *found.deviations))
        os.makedirs(run.path)
        local.write_run_dir(run, plan)
        prepared.append(
            Prepared(
                row=row,
                plan=plan,
                run=run,
                setup=drafted.setup,
                lacks=tuple(missing(row, host, facts)),
                could=tuple(other_hosts(row, config.hosts, host.name, simulates)),
                test_source=_test_source(batch.source, row),
            )
        )
    return Ready(batch, prepared, facts.gpus)


def _host(config: Config, name: str) -> HostSpec:
    host = config.host(name)
    if host.kind != "local":
        here = [other.name for other in config.hosts.values() if other.kind == "local"]
        raise UsageError(
            f"host {name} is of kind {host.kind}, which this version cannot run on yet", hint=f"here: {', '.join(here)}"
        )
    return host


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


def _tests_exist(chosen: Sequence[Row], workspace: Path) -> None:
    for row in chosen:
        if row.test and not (workspace / row.test).is_file():
            raise CheckoutError(
                f"row {row.row} of label {row.label} runs {row.test}, which is not in the checkout",
                hint="it is not committed, and not an untracked file either: is it ignored, or was it renamed?",
            )


def _test_source(workspace: Path, row: Row) -> str | None:
    return (workspace / row.test).read_text(encoding="utf-8", errors="replace") if row.test else None


def _simulates(workspace: Path) -> bool:
    """Whether the checkout's lock script keeps pretend GPUs' locks away from the real ones."""
    return any(
        LOCK_DIR_ENV in script.read_text(encoding="utf-8", errors="replace")
        for script in workspace.glob("tests/ci/*.py")
    )
