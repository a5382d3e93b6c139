"""`reproduce`: from a failed job's log to the checkout and row of CI's job, and to whether it fails here as well."""

from __future__ import annotations

import hashlib
import re
import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Deviation
from ci_tasks.checkout.repository import CheckoutGit, fetch_commit, find_commit
from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UsageError, one_line, short, truncated
from ci_tasks.given_values import GivenValues
from ci_tasks.logs.job_facts import RecoveredJob
from ci_tasks.logs.job_log import AnalysedLog
from ci_tasks.logs.job_parser import FAILED_STEPS_ONLY
from ci_tasks.logs.job_row import RowCandidate, context_of_log, identify_row, row_candidates
from ci_tasks.planning.deviations import CODE
from ci_tasks.records import EXIT_CODES, PASSED, VACUOUS, RunRecord, Triage
from ci_tasks.report import results
from ci_tasks.report.table import Table, duration, paragraph
from ci_tasks.report.triage import describe
from ci_tasks.resources import make_home
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context, open_source
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import execute_label
from ci_tasks.safe_output import masked_with_forms, terminal_width
from ci_tasks.trials import rules, same_failure
from ci_tasks.trials.rules import Match, Outcome, TrialVerdict
from ci_tasks.trials.same_failure import Comparison, FailureDifference
from ci_tasks.trials.trial import Execute, Runner, Subject, Trial, pinned
from ci_tasks.trials.words import CANCELLED, ON_MY_TREE, REPRODUCE
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import job_of, missing_outputs, rows, select
from ci_tasks.workflow.suite import label_of

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream
    from ci_tasks.trials.options import ReproduceOptions

_HERE = "here"
_UNSURE = 0.5  # a triage's confidence below which two equal failures say little
_LONGEST = 200
_MOST_PACKAGES = 12


@dataclass(frozen=True)
class ReproductionResult:
    """As `reproduce --json` prints it. `verdict` is the comparison's, or `cancelled` or `vacuous` if no run ended; `ci`
    is what CI's log says, `run` the run that shows the verdict. `same` is the equal evidence, `differs` the other, as
    each side has it."""

    verdict: str
    why: str
    exit_code: int
    ci: Triage
    run: RunRecord | None = None
    same: tuple[str, ...] = ()
    differs: tuple[FailureDifference, ...] = ()


def reproduce(
    log: AnalysedLog,
    config: Config,
    options: ReproduceOptions,
    events: EventStream | None = None,
    *,
    execute: Execute = execute_label,
) -> ReproductionResult:
    """Run the job of a log again, and say whether it is the same failure."""
    if log.triage.verdict == PASSED:
        raise UsageError(f"{log.name!r} shows no failure", hint="give the log of a job that failed")
    config.host(options.host)
    job, width = find_job(log.job, options, config.given), terminal_width()
    failure = [f"  {line}".rstrip() for line in describe(log.triage, width and width - 2)]
    print("\n".join([*recovered_lines(job, width), "", "CI's failure:", *failure, "", job.source.headline]), flush=True)
    runs, source = options.repeat or 1, job.source
    request, compared = _request(job, options), dict[str, Comparison]()
    with ExitStack() as stack:
        tree = stack.enter_context(pinned(source, request.base)) if runs > 1 else None
        subject = Subject(source, request, tree)
        runner = Runner(config, lambda _: subject, ExecutionOptions(events=events), live=runs == 1, execute=execute)

        def match(outcome: Outcome) -> str:
            record = runner.record(outcome)
            if record.triage is None:
                return rules.DIFFERENT_FAILURE
            compared[outcome.run] = same_failure.compare(log.triage, record.triage, same_tree=is_commit_of(job, record))
            return compared[outcome.run].outcome

        more = {"host": options.host, "label": request.label, "commit": job.commit, "failure": log.triage.signature}
        with Trial("reproduce", {_HERE: ""}, request.rows, runner, more=more, resume=False) as trial:
            trial.run(lambda *_: Match(_HERE, match, runs))
    trial.path.unlink(missing_ok=True)  # the same command begins again
    outcomes = trial.outcomes
    last = runner.record(outcomes[-1]) if outcomes else None
    if trial.is_interrupted or last is None:
        word = CANCELLED if trial.is_interrupted else VACUOUS
        print(f"no verdict: {'the same command starts again' if trial.is_interrupted else 'nothing ran'}", flush=True)
        return ReproductionResult(word, "no verdict", EXIT_CODES[word], log.triage, last)
    verdict = trial.verdict(job.row.row)
    if verdict.word == rules.PASSED_HERE and (why := runner.not_run(log.triage.tests, outcomes)):
        verdict = TrialVerdict(rules.BLOCKED, f"it passed here, but {why}")
    shows = [one for one in outcomes if one.run in compared and compared[one.run].outcome == verdict.word]
    shown = (shows or [one for one in outcomes if one.counts] or outcomes)[0]
    record = with_job_deviations(runner.record(shown), job)
    result = _result(verdict, log.triage, record, compared.get(shown.run, Comparison("")), options, job)
    lines = ["", *results.table([record], [shown.log], width), "", *results.deviations([record], width), ""]
    print("\n".join([*lines, f"{result.verdict}: {one_line(result.why)}"]), flush=True)
    return result


def _request(job: CiJob, options: ReproduceOptions) -> RunRequest:
    """How the row runs: with CI's image by its digest, so that a tag that moved makes no difference."""
    ci, image = job.recovered, options.image
    if image is None and ci.image and ci.digest:
        name, colon, tag = ci.image.partition("@")[0].rpartition(":")
        image = f"{name if colon and '/' not in tag else f'{name}{colon}{tag}'}@{ci.digest}"
    is_changed = job.source.suite.is_changed(job.row.label) and not options.on_my_tree
    base = (ci.merge_base or None) if is_changed else None
    label, row, probe = job.row.label, (job.row.row,), not options.no_probe
    return RunRequest(label, host=options.host, base=base, keep=options.keep, image=image, rows=row, probe=probe)


def _result(
    verdict: TrialVerdict, ci: Triage, record: RunRecord, found: Comparison, options: ReproduceOptions, job: CiJob
) -> ReproductionResult:
    """The verdict, with what was equal or differs, and the next step."""
    there = truncated(ci.text or ci.line or "no reason in its log", _LONGEST)
    here = truncated((record.triage and record.triage.text) or record.reason or record.status, _LONGEST)
    differs = "; ".join(truncated(str(item), _LONGEST) for item in found.differs) or f"CI: {there}; here: {here}"
    weak = "; the log shows little of the cause, so this is weak evidence" if ci.confidence < _UNSURE else ""
    environment = f"; CI's failure came from its environment ({ci.cause})" if ci.verdict == rules.BLOCKED else ""
    is_known = job.is_row_shown or bool(ci.tests)
    named = "; nothing in the log shows that this row was CI's" * (not is_known)
    often = "" if options.repeat or environment else "; `--repeat 20` tells whether it is flaky"
    more = {
        rules.REPRODUCED: f": {there}; equal on both sides: {truncated('; '.join(found.same), 2 * _LONGEST)}{weak}",
        rules.SAME_KIND: f": {differs}; `--repeat 20` may show it, `diff` compares two runs",
        rules.DIFFERENT_FAILURE: f": {differs}",
        rules.PASSED_HERE: f"{named}{environment}{often}",
        rules.BLOCKED: "; nothing is known about the code"
        + ": fix the environment, or use another --host" * (record.status != PASSED),
    }
    is_fixed = options.on_my_tree and verdict.word == rules.PASSED_HERE and is_known
    word, why = rules.FIXED_HERE if is_fixed else verdict.word, verdict.why + more[verdict.word]
    codes = ON_MY_TREE if options.on_my_tree else REPRODUCE
    return ReproductionResult(word, why, codes[word], ci, record, found.same, found.differs)


# -- CI's job, by its log ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CiJob:
    """`source` is what runs: CI's commit, or the working tree. `commit` is the one that CI ran, or `is_merged_here` if
    its parents were merged here again. `is_row_shown`: the log shows the row, or else a person named it."""

    source: CheckoutSource
    recovered: RecoveredJob
    row: Row
    commit: str
    is_merged_here: bool = False
    is_row_shown: bool = True


def find_job(recovered: RecoveredJob, options: ReproduceOptions, given: GivenValues) -> CiJob:
    """Raises UsageError, CheckoutError if the commit or the row is not known, or the commit cannot be had."""
    try:
        mine = open_source(options.repo, None, options.workflow or recovered.workflow or None, given)
    except CheckoutError as error:
        named = f"the log is of {recovered.repository}: --repo DIR names its checkout\n" if recovered.repository else ""
        raise CheckoutError(error.message, hint=f"{named}{error.hint}") from None
    mine = mine.with_outputs_of([recovered])
    options = replace(options, label=mine.label_of(options.label)) if options.label else options
    commit = options.rev or recovered.commit
    if options.on_my_tree and not (commit and find_commit(mine.path, commit)):
        row, is_shown = _row(mine, recovered, options)
        return CiJob(mine, recovered, row, commit, is_row_shown=is_shown)
    if not commit:
        hint = "--rev REV names it, --on-my-tree runs your working tree"
        if FAILED_STEPS_ONLY in recovered.missing:
            hint = f"the log has failed steps only: save the whole log with `gh run view RUN --log`\n{hint}"
        raise UsageError("the log does not show which commit CI ran", hint=hint)
    source = _checkout_at(mine, commit, recovered, options).with_outputs_of([recovered])
    (row, is_shown), at = _row(source, recovered, options), source.rev or commit
    return CiJob(mine if options.on_my_tree else source, recovered, row, at, at != commit, is_shown)


def _checkout_at(mine: CheckoutSource, commit: str, job: RecoveredJob, options: ReproduceOptions) -> CheckoutSource:
    """The checkout at `commit`, which is fetched beside it if it is not in it, or merged again from its parents."""
    path = mine.path
    if not find_commit(path, commit):
        url = address(mine.origin, job.repository)
        hint = "--rev REV names another commit, --on-my-tree runs your working tree"
        if mine.sample:
            hint = f"{mine.headline}\n{hint}"
        elif job.repository.lower() not in mine.origin.lower():
            hint = f"the log is of {job.repository}: --repo DIR names another checkout\n{hint}"
        if not url:
            message = f"commit {short(commit)} is not in {path}, and the log names no repository"
            raise CheckoutError(message, hint=hint)
        print(f"fetching commit {short(commit)} from {masked_with_forms(url)}", flush=True)
        name = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        beside = make_home() / "commits" / name
        try:
            path = fetch_commit(path, commit, beside, url=url, ref=job.ref)
        except CheckoutError as error:
            problem = CheckoutError(error.message, hint=f"{error.hint}\n{hint}".strip())
            if commit != job.commit or not job.merge_head:
                raise problem from None
            path, commit = beside, _merged_again(beside, job, problem)
    source = open_source(str(path), commit, options.workflow or job.workflow or None, mine.given)
    return replace(source, how=mine.how, sample=mine.sample)


def address(origin: str, repository: str) -> str:
    """Where CI's repository is: `origin` may be a fork, which has its name. A log chooses no other repository."""
    if not origin:
        return f"https://github.com/{repository}" if repository else ""
    host = re.match(r"(?:https?|ssh)://[^/]+/|[\w.-]+@[\w.-]+:", origin)
    own = re.sub(r"(\.git)?/?$", "", origin[host.end() :]).lower() if host else ""
    is_fork = own != repository.lower() and own.rpartition("/")[2] == repository.lower().rpartition("/")[2]
    return host[0] + repository if host and is_fork else origin


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
        hint = f"--rev {short(head)} runs the pull request's own commit\n{problem.hint}"
        raise CheckoutError(message, hint=hint) from None
    print(f"commit {short(job.commit)} is gone: merging {short(head)} into {short(base)} again", flush=True)
    return commit


def _row(source: CheckoutSource, recovered: RecoveredJob, options: ReproduceOptions) -> tuple[Row, bool]:
    """The row that the log is of, and whether it shows that. Raises UsageError if none or several fit, naming them."""
    candidates = _candidates(source, recovered, options)
    if options.only:
        chosen = select([each.row for each in candidates], options.only, options.label or "any label")
        candidates = [each for each in candidates if each.row in chosen]
    which = identify_row(recovered, candidates)
    if which.row is not None:
        return which.row, True
    if (options.label or options.only) and len(candidates) == 1:
        return candidates[0].row, False
    near = "".join(f"\n  --label {shlex.quote(row.label)} --only {shlex.quote(row.row)}" for row in which.nearest)
    message = f"the log does not show its row of {source.workflow.place}: {which.why}"
    hint = f"name it:{near}" if near else "--label LABEL --only ROW names it; `jobs` lists them"
    raise UsageError(message, hint=hint)


def _candidates(source: CheckoutSource, recovered: RecoveredJob, options: ReproduceOptions) -> list[RowCandidate]:
    """The rows of the label, or of all jobs. If another job's output says which rows a job has, its name decides."""
    workflow = source.workflow
    context = context_of_log(recovered, event_context(source, secrets=workflow.secrets))
    candidates = []
    for job in [job_of(workflow, options.label)] if options.label else workflow.jobs.values():
        if not missing_outputs(job, context):
            candidates += row_candidates(workflow, job, rows(workflow, job, context, source.suite.describe), context)
        elif options.label or recovered.job_name.startswith(job.id):
            decided = find_rows(source, label_of(job.id), context, recovered.merge_base or None)
            candidates += row_candidates(workflow, decided.job, list(decided.rows), context)
    return candidates


# -- beside its run here --------------------------------------------------------------------------------------------


def recovered_lines(job: CiJob, width: int | None = None) -> list[str]:
    """The job that failed in CI, a line each; then what its log did not say."""
    ci, row = job.recovered, job.row
    pull = f", pull request {ci.pull_request}" if ci.pull_request else ""
    merged = f" (merge of {short(ci.merge_head)} into {short(ci.merge_base)})" if ci.merge_head else ""
    origin, name = job.source.origin, ci.repository.rpartition("/")[2].lower()
    facts = {
        "repository": f"{ci.repository}, which is not this checkout's: {masked_with_forms(origin)}"
        if origin and name not in origin.lower()
        else "",
        "job": ci.job_name,
        "row": f"{row.label} / {row.row}{', as you say' * (not job.is_row_shown)}",
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
    """Whether the run's tree is the tree of CI's commit."""
    return record.checkout is not None and record.checkout.head == job.commit and not record.checkout.dirty


def with_job_deviations(record: RunRecord, job: CiJob) -> RunRecord:
    """The record with its deviations from this very job, by what the log says of it. CI's own commit is none."""
    ci, around = job.recovered, record.environment
    merge = f"{short(ci.merge_head)} merged into {short(ci.merge_base)}"
    found = [Deviation(CODE, f"merge commit {short(ci.commit)}", merge, "CI's commit is gone")] * job.is_merged_here
    shown = [(name, value) for step in ci.steps for name, value in step.env.items()]
    empty = {name for name, _ in shown} - {name for name, value in shown if value}
    for item in record.deviations:
        if item.what == "secrets":  # one that CI did not have either is no difference
            names = ", ".join(name for name in item.ci.split(", ") if name not in empty)
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
