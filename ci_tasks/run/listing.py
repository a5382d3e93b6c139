"""`jobs` and `hosts`: what there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ci_tasks.checkout.git import Git
from ci_tasks.checkout.revision import BASE
from ci_tasks.config import Config
from ci_tasks.executors.kept.client import KeptConnection, kept_connections
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.job_outputs import find_rows
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.naming import label_of, matches_job
from ci_tasks.workflow.select import job_of


@dataclass(frozen=True)
class ListedHost:
    """A host as `hosts --json` shows it: its fields are the keys. `sources` has the file and the line of each key that
    is set. `kept` is the process that keeps a connection to it for the next command."""

    name: str
    kind: str
    address: str | None
    runtime: str
    gpus: int | None
    simulate: bool
    pools: list[str]
    sources: dict[str, str]
    kept: KeptConnection | None = None


def list_jobs(
    source: CheckoutSource, label: str | None = None, base: str | None = None, *, run_needs: bool = False
) -> list[Row]:
    """Every row of the checkout's workflow, or of one label. With `run_needs`, jobs whose outputs decide a matrix run
    here; otherwise its row says `dynamic`, but where only the label of changed tests is asked for, and nothing of the
    checkout is executed."""
    event = _event_at_head(source)
    if label is not None and not source.suite.is_changed(label):
        job_of(source.workflow, label)
    listed: list[Row] = []
    for job in source.workflow.jobs.values():
        if label is not None and not matches_job(label, job.id):
            continue
        name = label_of(job.id)
        wanted = run_needs or (label is not None and source.suite.is_changed(name))
        if wanted and rows.missing_outputs(job, event):
            listed += find_rows(source, name, event, base, run_needs=run_needs).rows
        else:
            listed += rows.rows(source.workflow, job, event, source.suite.describe)
    if label is not None and source.suite.is_changed(label) and not any(row.label == label for row in listed):
        listed = find_rows(source, label, event, base).rows
    return [_shown(row) for row in listed]


def why_no_rows(source: CheckoutSource, label: str, base: str | None, *, run_needs: bool) -> str:
    """Why `label` has none. With `run_needs` the workflow has decided, whose reason is not known."""
    if run_needs or not source.suite.is_changed(label):
        return f"label {label} has no row here: its `if:` is false for a pull request, or its matrix is empty"
    return f"label {label} has no row: no test file is new or modified since {base or BASE} (--base REV names another)"


def images(source: CheckoutSource) -> list[str]:
    """The images that the workflow's rows run in; none of the sample, which are nowhere to be had."""
    return [] if source.sample else list(dict.fromkeys(row.image for row in list_jobs(source) if row.image))


def list_hosts(config: Config) -> list[ListedHost]:
    """The hosts of hosts.yaml, as `hosts --json` shows them."""
    kept = {connection.address: connection for connection in kept_connections()}
    return [
        ListedHost(
            name=host.name,
            kind=host.kind,
            address=host.address,
            runtime=host.runtime,
            gpus=host.gpus,
            simulate=host.simulate,
            pools=[pool for pool, members in config.pools.items() if host.name in members],
            sources=dict(config.sources.get(host.name, {})),
            kept=kept.get(host.address or host.name),
        )
        for host in config.hosts.values()
    ]


def _event_at_head(source: CheckoutSource) -> EventContext:
    event = event_context(source, secrets=source.workflow.secrets)
    head = Git(source.path).text_or_none("rev-parse", "--verify", "--quiet", f"{source.rev or 'HEAD'}^{{commit}}")
    return replace(event, sha=head) if head else event


def _shown(row: Row) -> Row:
    return replace(row, env={name: secrets.shown(value) for name, value in row.env.items()})
