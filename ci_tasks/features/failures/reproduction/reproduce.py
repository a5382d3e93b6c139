"""`reproduce`: from a failed job's log to whether it fails here as well."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ci_tasks.checkout.repository import fetch_commit, find_commit, resolve_base
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, one_line
from ci_tasks.features.failures.comparison.compare import TreeComparisonRequest, compare_rows, open_base
from ci_tasks.features.failures.repeats.outcomes import RepeatLimit
from ci_tasks.features.failures.repeats.repeat_label import perform_repeatedly
from ci_tasks.features.failures.reproduction import report
from ci_tasks.features.failures.reproduction.verdicts import (
    BLOCKED,
    DIFFERENT,
    REPRODUCED,
    SAME_KIND,
    ReproductionResult,
    compare_failures,
)
from ci_tasks.given_values import GivenValues
from ci_tasks.logs.job_log import AnalysedLog
from ci_tasks.logs.job_row import commit_from_variables, context_of_log, identify_row, row_candidates
from ci_tasks.logs.job_steps import RecoveredJob
from ci_tasks.records import CANCELLED, EXIT_CODES, PASSED, VACUOUS, RunRecord
from ci_tasks.report import results
from ci_tasks.report.triage import describe
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, event_context, find_checkout, open_source, origin
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials.source_line import with_statement
from ci_tasks.workflow import rows
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import job_of, select
from ci_tasks.workflow.suite import label_of

if TYPE_CHECKING:
    from ci_tasks.features.failures.options import ReproduceOptions
    from ci_tasks.run.events import EventStream


def reproduce(
    log: AnalysedLog, config: Config, options: ReproduceOptions, events: EventStream | None = None
) -> ReproductionResult:
    """Run the job of a log again, and say whether it is the same failure."""
    if log.triage.verdict == PASSED:
        raise UsageError(f"{log.name!r} shows no failure", hint="give the log of a job that failed")
    config.host(options.host)
    source, recovered, row = _job_of_log(log.job, options, config.given)
    print("\n".join([*report.recovered(recovered, row.row, row.label, terminal_width()), "", "CI's failure:"]))
    width = terminal_width()
    failure = describe(log.triage, width and width - 2)
    print("\n".join(f"  {line}".rstrip() for line in failure), "", sep="\n", flush=True)
    base = recovered.merge_base if source.suite.is_changed(row.label) and not options.on_my_tree else None
    image = options.image or _pinned(recovered)
    run_request = RunRequest(
        row.label,
        None,
        options.host,
        base or None,
        keep=options.keep,
        image=image,
        rows=(row.row,),
        probe=not options.no_probe,
    )
    print(source.headline, flush=True)
    how = ExecutionOptions(events=events)
    rows = _rows_to_compare(run_request, source, options)
    if rows:
        open_base(source, config, rows)  # before anything runs: is there such a base, and has it the row?
    compare = partial(_compared, source=source, config=config, rows=rows, events=events)
    if options.repeat and options.repeat > 1:
        done = perform_repeatedly(source, config, run_request, RepeatLimit(options.repeat), how)
        if done.interrupted or not done.records:
            return ReproductionResult(done.status, "no verdict", done.exit_code, log.triage)
        records, logs = [record for record, _ in done.records], [path for _, path in done.records]
        return compare(_conclude(log, recovered, source, records, logs))
    once = execute_label(source, config, run_request, how)
    if once is None:
        return ReproductionResult(VACUOUS, "no verdict", EXIT_CODES[VACUOUS], log.triage)
    if once.records[0].status == CANCELLED:
        return ReproductionResult(CANCELLED, "no verdict", once.exit_code, log.triage, once.records[0])
    return compare(_conclude(log, recovered, source, once.records, once.logs))


def _compared(
    result: ReproductionResult,
    source: CheckoutSource,
    config: Config,
    rows: TreeComparisonRequest | None,
    events: EventStream | None,
) -> ReproductionResult:
    """With the comparison that --base asks for, where the failure was seen here. The exit code stays."""
    if rows is None or result.verdict not in (REPRODUCED, SAME_KIND, DIFFERENT):
        return result
    return replace(result, comparison=compare_rows(source, config, rows, events))


def _rows_to_compare(
    request: RunRequest, source: CheckoutSource, options: ReproduceOptions
) -> TreeComparisonRequest | None:
    """What --base asks for. The checkout has the branches; a commit that was fetched beside it shares its objects."""
    if options.base is None:
        return None
    path = find_checkout(options.repo)[0]
    base = resolve_base(path, options.base) if path != source.path else options.base
    return TreeComparisonRequest(
        request.label, request.rows, request.host, base, image=request.image, probe=request.probe
    )


def _conclude(
    log: AnalysedLog,
    recovered: RecoveredJob,
    source: CheckoutSource,
    records: Sequence[RunRecord],
    logs: Sequence[str],
) -> ReproductionResult:
    ci = with_statement(log.triage, source.path, recovered.commit)
    records = [_with_statement(record, source) for record in records]
    verdict = compare_failures(ci, records)
    at = next(number for number, record in enumerate(records) if record is verdict.record)
    width = terminal_width()
    shown = results.table([verdict.record], [logs[at]], width)
    differences = results.deviations([_without_code_deviation(verdict.record, recovered)], width)
    print("\n".join(["", *shown, "", *report.comparison(recovered, verdict.record, width), "", *differences, ""]))
    print(f"{verdict.verdict}: {one_line(verdict.why)}", flush=True)
    if verdict.verdict == BLOCKED:
        print("nothing was shown about the code: mend the environment, or name another --host")
    if verdict.verdict == SAME_KIND:
        print("it is not shown to be the same failure; `--repeat 20` may show it, `diff` compares two runs")
    return ReproductionResult(
        verdict.verdict, verdict.why, verdict.exit_code, ci, verdict.record, verdict.same, verdict.differs
    )


def _with_statement(record: RunRecord, source: CheckoutSource) -> RunRecord:
    """The record with the statement that failed, of a tree that is a commit of the checkout."""
    commit = record.checkout.head if record.checkout is not None and not record.checkout.dirty else ""
    if record.triage is None or not commit:
        return record
    return replace(record, triage=with_statement(record.triage, source.path, commit))


def _without_code_deviation(record: RunRecord, recovered: RecoveredJob) -> RunRecord:
    """The record, without the difference in code where there is none: CI's own commit ran."""
    checkout = record.checkout
    if checkout is None or not recovered.commit or checkout.head != recovered.commit or checkout.dirty:
        return record
    return replace(record, deviations=tuple(item for item in record.deviations if item.what != "code"))


def _job_of_log(
    recovered: RecoveredJob, options: ReproduceOptions, given: GivenValues
) -> tuple[CheckoutSource, RecoveredJob, Row]:
    """The checkout at the job's commit, or the working tree, and the row that the log is of."""
    mine = open_source(options.repo, None, options.workflow or recovered.workflow or None, given)
    options = replace(options, label=mine.label_of(options.label)) if options.label else options
    recovered = _with_commit(recovered, mine)
    commit = options.rev or recovered.commit
    if not commit and not options.on_my_tree:
        raise UsageError(
            "the log does not say which commit CI ran", hint="--rev REV names it, --on-my-tree runs your working tree"
        )
    available = bool(commit) and (not options.on_my_tree or find_commit(mine.path, commit))
    source = _checkout_at(mine, commit, recovered, options) if available else mine
    row = _row(source, recovered, options)
    return (mine if options.on_my_tree else source), recovered, row


def _with_commit(recovered: RecoveredJob, source: CheckoutSource) -> RecoveredJob:
    """The commit may stand in a variable of the job alone."""
    for job in source.workflow.jobs.values():
        if recovered.commit:
            break
        recovered = commit_from_variables(recovered, source.workflow, job)
    return recovered if recovered.commit else _at_head(recovered, source)


def _at_head(recovered: RecoveredJob, source: CheckoutSource) -> RecoveredJob:
    """With the commit that git says HEAD is at, outside of a checkout step: the only one that the checkout has, else
    the only one. Scripts clone other repositories too."""
    own = [head for head in recovered.heads if find_commit(source.path, head.commit)]
    heads = own or recovered.heads
    if len(heads) != 1:
        return recovered
    head = heads[0]
    missing = tuple(text for text in recovered.missing if not text.startswith("the commit:"))
    return replace(
        recovered, commit=head.commit, merge_head=head.merge_head, merge_base=head.merge_base, missing=missing
    )


def _checkout_at(
    mine: CheckoutSource, commit: str, recovered: RecoveredJob, options: ReproduceOptions
) -> CheckoutSource:
    """The checkout at `commit`, which is fetched beside it where it is not in it."""
    path = mine.path
    if not find_commit(path, commit):
        url = origin(path) or f"https://github.com/{recovered.repository}"
        print(f"fetching commit {commit[:12]} from {url}", flush=True)
        name = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        path = fetch_commit(path, commit, store.home() / "commits" / name, url=url, ref=recovered.ref)
    source = open_source(str(path), commit, options.workflow or recovered.workflow or None, mine.given)
    return replace(source, how=mine.how, sample=mine.sample)


def _row(source: CheckoutSource, recovered: RecoveredJob, options: ReproduceOptions) -> Row:
    """The row that the log is of. Raises UsageError where none or several fit, naming them."""
    context = context_of_log(recovered, event_context(source, secrets=source.workflow.secrets))
    jobs = source.workflow.jobs.values() if not options.label else [job_of(source.workflow, options.label)]
    job_rows = []
    for job in jobs:
        if not rows.missing_outputs(job, context):
            job_rows.append((job, rows.rows(source.workflow, job, context, source.suite.describe)))
        elif options.label or recovered.job_name.startswith(job.id):  # another job's output says which rows it has
            decided = find_rows(source, label_of(job.id), context, recovered.merge_base or None)
            job_rows.append((decided.job, decided.rows))
    if options.only:
        where = options.label or "any label"
        chosen = select([row for _, several in job_rows for row in several], options.only, where)
        job_rows = [(job, [row for row in several if row in chosen]) for job, several in job_rows]
    every = [row for _, several in job_rows for row in several]
    if (options.label or options.only) and len(every) == 1:
        return every[0]
    known_rows = [
        candidate for job, several in job_rows for candidate in row_candidates(source.workflow, job, several, context)
    ]
    which = identify_row(recovered, known_rows)
    if which.row is not None:
        return which.row
    near = "".join(f"\n  --label {row.label} --only '{row.row}'" for row in which.nearest)
    raise UsageError(
        f"the log does not say which row of {source.workflow.place} it is of: {which.why}",
        hint=f"name it:{near}" if near else "--label LABEL --only ROW names it; `jobs` lists them",
    )


def _pinned(recovered: RecoveredJob) -> str | None:
    """The image that CI ran, by its digest, so that a tag that moved makes no difference."""
    name = recovered.image.partition("@")[0]
    if not (name and recovered.digest):
        return None
    head, colon, tag = name.rpartition(":")
    bare = head if colon and "/" not in tag else name
    return f"{bare}@{recovered.digest}"
