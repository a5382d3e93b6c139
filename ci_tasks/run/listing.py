"""`jobs`: the rows that there are."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.checkout.repository import BASE, find_commit
from ci_tasks.errors import WorkflowError
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row
from ci_tasks.workflow.rows import job_of
from ci_tasks.workflow.suite import label_of, matches_job


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
    for job in source.workflow.labelled:
        if label is not None and not matches_job(label, job.id):
            continue
        name = label_of(job.id)
        wanted = run_needs or (label is not None and source.suite.is_changed(name))
        if wanted and rows.missing_outputs(job, event):
            listed += _find_rows(source, name, event, base, run_needs=run_needs)
        else:
            listed += _rows(source, job, event, alone=label is not None)
    if label is not None and source.suite.is_changed(label) and not any(row.label == label for row in listed):
        listed = _find_rows(source, label, event, base)
    return [_shown(row) for row in listed]


def _rows(source: CheckoutSource, job: Job, event: EventContext, *, alone: bool) -> list[Row]:
    """A job with an error hides no others: among them it is one row that says so."""
    try:
        return rows.rows(source.workflow, job, event, source.suite.describe)
    except WorkflowError as error:
        if alone:
            raise
        return [rows.refused_row(job, str(error).splitlines()[0])]


def why_no_rows(source: CheckoutSource, label: str, base: str | None, *, run_needs: bool) -> str:
    """Why `label` has none. With `run_needs` the workflow has decided, whose reason is not known."""
    if run_needs or not source.suite.is_changed(label):
        return f"label {label} has no row here: its `if:` is false for a pull request, or its matrix is empty"
    return f"label {label} has no row: no test file is new or modified since {base or BASE} (--base REV names another)"


def images(source: CheckoutSource) -> list[str]:
    """The images that the workflow's rows run in; none of the sample, which are nowhere to be had."""
    return [] if source.sample else list(dict.fromkeys(row.image for row in list_jobs(source) if row.image))


def _find_rows(
    source: CheckoutSource, label: str, event: EventContext, base: str | None, *, run_needs: bool = True
) -> list[Row]:
    from ci_tasks.run.job_outputs import find_rows  # what plans and runs a job, which few lists need

    return find_rows(source, label, event, base, run_needs=run_needs).rows


def _event_at_head(source: CheckoutSource) -> EventContext:
    event = event_context(source, secrets=source.workflow.secrets)
    head = find_commit(source.path, source.rev or "HEAD")
    return replace(event, sha=head) if head else event


def _shown(row: Row) -> Row:
    return replace(row, env={name: secrets.shown(value) for name, value in row.env.items()})
