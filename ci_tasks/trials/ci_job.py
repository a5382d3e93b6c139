"""A job of CI, from its log: the checkout at its commit, and its row; and beside its run here."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Deviation
from ci_tasks.checkout.repository import CheckoutGit, fetch_commit, find_commit
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.given_values import GivenValues
from ci_tasks.known_secrets import masked_with_forms
from ci_tasks.logs.job_row import RowCandidate, commit_from_variables, context_of_log, identify_row, row_candidates
from ci_tasks.logs.recovered_job import RecoveredJob
from ci_tasks.planning.deviations import CODE
from ci_tasks.records import RunRecord
from ci_tasks.report.table import Table, duration, paragraph
from ci_tasks.resources import make_home
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source, origin
from ci_tasks.run.find_rows import find_rows
from ci_tasks.trials.options import ReproduceOptions
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import job_of, select
from ci_tasks.workflow.suite import label_of

_MOST_PACKAGES = 12


@dataclass(frozen=True)
class CiJob:
    """`source` is what runs: CI's commit, or the working tree. `commit` is the one that CI ran, or `is_merged_here` if
    its parents were merged here again."""

    source: CheckoutSource
    recovered: RecoveredJob
    row: Row
    commit: str
    is_merged_here: bool = False


def find_job(recovered: RecoveredJob, options: ReproduceOptions, given: GivenValues) -> CiJob:
    """Raises UsageError, CheckoutError if the commit or the row is not known, or the commit cannot be had."""
    mine = open_source(options.repo, None, options.workflow or recovered.workflow or None, given)
    options = replace(options, label=mine.label_of(options.label)) if options.label else options
    for ci_job in mine.workflow.jobs.values():  # a variable of the job may name it
        recovered = recovered if recovered.commit else commit_from_variables(recovered, mine.workflow, ci_job)
    commit = options.rev or recovered.commit
    if options.on_my_tree and not (commit and find_commit(mine.path, commit)):
        return CiJob(mine, recovered, _row(mine, recovered, options), commit)
    if not commit:
        hint = "--rev REV names it, --on-my-tree runs your working tree"
        raise UsageError("the log does not say which commit CI ran", hint=hint)
    source = _checkout_at(mine, commit, recovered, options)
    row, at = _row(source, recovered, options), source.rev or commit
    return CiJob(mine if options.on_my_tree else source, recovered, row, at, is_merged_here=at != commit)


def _checkout_at(
    mine: CheckoutSource, commit: str, recovered: RecoveredJob, options: ReproduceOptions
) -> CheckoutSource:
    """The checkout at `commit`, which is fetched beside it if it is not in it, or merged again from its parents."""
    path = mine.path
    if not find_commit(path, commit):
        url = origin(path) or f"https://github.com/{recovered.repository}"
        print(f"fetching commit {commit[:12]} from {masked_with_forms(url)}", flush=True)
        name = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        beside = make_home() / "commits" / name
        try:
            path = fetch_commit(path, commit, beside, url=url, ref=recovered.ref)
        except CheckoutError as problem:
            if commit != recovered.commit or not recovered.merge_head:
                raise
            path, commit = beside, _merged_again(beside, recovered, problem)
    source = open_source(str(path), commit, options.workflow or recovered.workflow or None, mine.given)
    return replace(source, how=mine.how, sample=mine.sample)


def _merged_again(beside: Path, job: RecoveredJob, problem: CheckoutError) -> str:
    """Merge the parents of CI's merge commit again, in the repository `beside` the checkout: the server no longer has
    that commit. Raises the problem, with the commit of the pull request as next step."""
    base, head = job.merge_base, job.merge_head
    git = CheckoutGit(beside / ".git")
    try:
        tree = git.text("merge-tree", "--write-tree", base, head).splitlines()[0]
        date = git.text("show", "--no-patch", "--format=%cI", head)  # the same merge each time
        for role in ("AUTHOR", "COMMITTER"):
            git.env |= {f"GIT_{role}_NAME": "ci-tasks", f"GIT_{role}_EMAIL": "ci-tasks", f"GIT_{role}_DATE": date}
        message = f"Merge {head} into {base}"
        commit = git.text("commit-tree", tree, "-p", base, "-p", head, "-m", message)
    except CheckoutError:
        message = f"{problem.message}, and its parents cannot be merged here"
        hint = f"--rev {head[:12]} runs the pull request's own commit\n{problem.hint}"
        raise CheckoutError(message, hint=hint) from None
    print(f"commit {job.commit[:12]} is gone: merging {head[:12]} into {base[:12]} again", flush=True)
    return commit


def _row(source: CheckoutSource, recovered: RecoveredJob, options: ReproduceOptions) -> Row:
    """The row that the log is of. Raises UsageError where none or several fit, naming them."""
    candidates = _candidates(source, recovered, options)
    if options.only:
        chosen = select([each.row for each in candidates], options.only, options.label or "any label")
        candidates = [each for each in candidates if each.row in chosen]
    if (options.label or options.only) and len(candidates) == 1:
        return candidates[0].row
    which = identify_row(recovered, candidates)
    if which.row is not None:
        return which.row
    near = "".join(f"\n  --label {shlex.quote(row.label)} --only {shlex.quote(row.row)}" for row in which.nearest)
    raise UsageError(
        f"the log does not say which row of {source.workflow.place} it is of: {which.why}",
        hint=f"name it:{near}" if near else "--label LABEL --only ROW names it; `jobs` lists them",
    )


def _candidates(source: CheckoutSource, recovered: RecoveredJob, options: ReproduceOptions) -> list[RowCandidate]:
    """The rows of the label, or of all jobs. If another job's output says which rows a job has, its name decides."""
    workflow = source.workflow
    context = context_of_log(recovered, event_context(source, secrets=workflow.secrets))
    candidates = []
    for job in [job_of(workflow, options.label)] if options.label else workflow.jobs.values():
        rows: Iterable[Row] = ()
        if not workflow_rows.missing_outputs(job, context):
            rows = workflow_rows.rows(workflow, job, context, source.suite.describe)
        elif options.label or recovered.job_name.startswith(job.id):
            decided = find_rows(source, label_of(job.id), context, recovered.merge_base or None)
            job, rows = decided.job, decided.rows
        candidates += row_candidates(workflow, job, list(rows), context)
    return candidates


# -- beside its run here --------------------------------------------------------------------------------------------


def recovered_lines(job: CiJob, width: int | None = None) -> list[str]:
    """The job that failed in CI, a line each; then what its log did not say."""
    ci, row = job.recovered, job.row
    pull = f", pull request {ci.pull_request}" if ci.pull_request else ""
    merged = f" (merge of {ci.merge_head[:12]} into {ci.merge_base[:12]})" if ci.merge_head else ""
    facts = {
        "job": ci.job_name,
        "row": f"{row.label} / {row.row}",
        "commit": f"{ci.commit}{merged}{pull}" if ci.commit else "",
        "image": f"{ci.image}{f' @ {ci.digest}' if ci.digest else ''}",
        "runner": ci.runner_name,
        "step": ci.failed_step,
        "took": duration(ci.ended - ci.started) if ci.ended and ci.started else "",
    }
    lines = Table([(f"  {name}:", value) for name, value in facts.items() if value]).text(width)
    missing = [line for sentence in ci.missing for line in paragraph(f"not recovered: {sentence}", width, "  ")]
    return ["CI's job:", *lines, *missing]


def is_commit_of(job: CiJob, record: RunRecord) -> bool:
    """Whether the run's tree is that of CI's commit."""
    return record.checkout is not None and record.checkout.head == job.commit and not record.checkout.dirty


def with_job_deviations(record: RunRecord, job: CiJob) -> RunRecord:
    """The record with its deviations from this very job, by what the log says of it. CI's own commit is none."""
    ci, around = job.recovered, record.environment
    merge = f"{ci.merge_head[:12]} merged into {ci.merge_base[:12]}"
    found = [Deviation(CODE, f"merge commit {ci.commit[:12]}", merge, "CI's commit is gone")] * job.is_merged_here
    for item in record.deviations:
        if item.what == "secrets":  # one that CI did not have either is no difference
            names = ", ".join(name for name in item.ci.split(", ") if name not in _empty(ci))
            found += [replace(item, ci=names)] if names else []
        elif item.what != CODE or not is_commit_of(job, record):
            found.append(item)
    digests = [reference.partition("@")[2] for each in around.containers[:1] for reference in each.digests]
    facts = [
        ("image digest", ci.digest, ci.digest if ci.digest in digests else next(iter(digests), "")),
        ("exit code", str(ci.exit_code or ""), str(record.exit_code or "")),
        ("runner", ci.runner_name, record.host),
        ("runner image", ci.runner_image, ""),
        ("Python", ci.python, around.python),
        ("GPU model", ", ".join(dict.fromkeys(ci.gpu_models)), ", ".join(dict.fromkeys(g.name for g in around.gpus))),
        ("driver", ci.driver, around.driver),
    ]
    packages = [(name, version, around.packages.get(name)) for name, version in sorted(ci.packages.items())]
    facts += [(f"package {name}", there, here) for name, there, here in packages if here][:_MOST_PACKAGES]
    why = "CI's log says so"
    found += [Deviation(what, there, here or "none", why) for what, there, here in facts if there and there != here]
    return replace(record, deviations=tuple(found))


def _empty(ci: RecoveredJob) -> set[str]:
    """Variables that the log shows without a value."""
    shown = [(name, value) for step in ci.steps for name, value in step.env.items()]
    return {name for name, _ in shown} - {name for name, value in shown if value}
