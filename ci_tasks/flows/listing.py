"""`jobs` and `hosts`: what there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ci_tasks.config import Config
from ci_tasks.flows.outputs import find_rows
from ci_tasks.flows.source import Source, situation
from ci_tasks.model import Row
from ci_tasks.suites import slime
from ci_tasks.sync.git import Git
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import Situation
from ci_tasks.workflow.naming import means


def list_jobs(source: Source, label: str | None = None, base: str | None = None) -> list[Row]:
    """Every row of the checkout's workflow, or of one label. A matrix that another job must be run for is found for the
    label that was asked for, and for slime's changed tests; elsewhere its row says `dynamic`."""
    known = _situation(source)
    if label is not None and label != slime.CHANGED:
        slime.job_of(source.workflow, label)
    found: list[Row] = []
    for job in source.workflow.jobs.values():
        if label is not None and not means(label, job.id):
            continue
        if label is not None and rows.missing_outputs(job, known):
            found += find_rows(source, label, known, base).rows
        else:
            found += rows.rows(source.workflow, job, known, slime.describe)
    if label == slime.CHANGED and not any(row.label == label for row in found):
        found = find_rows(source, label, known, base).rows
    return [_shown(row) for row in found]


def images(source: Source) -> list[str]:
    """The images that the workflow's rows run in; none of the sample, which are nowhere to be had."""
    return [] if source.sample else list(dict.fromkeys(row.image for row in list_jobs(source) if row.image))


def list_hosts(config: Config) -> list[dict[str, Any]]:
    """The hosts of hosts.yaml, as `hosts --json` shows them."""
    return [
        {
            "name": host.name,
            "kind": host.kind,
            "address": host.address,
            "runtime": host.runtime,
            "gpus": host.gpus,
            "simulate": host.simulate,
            "pools": [pool for pool, members in config.pools.items() if host.name in members],
        }
        for host in config.hosts.values()
    ]


def _situation(source: Source) -> Situation:
    known = situation(source, secrets=source.workflow.secrets)
    head = Git(source.path).maybe("rev-parse", "--verify", "--quiet", f"{source.rev or 'HEAD'}^{{commit}}")
    return replace(known, sha=head) if head else known


def _shown(row: Row) -> Row:
    return replace(row, env={name: secrets.shown(value) for name, value in row.env.items()})
