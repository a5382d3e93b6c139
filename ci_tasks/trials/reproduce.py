"""`reproduce`: from a failed job's log to whether it fails here as well."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import ContainerState
from ci_tasks.checkout.repository import fetch_commit, find_commit, resolve_base
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, one_line, truncated
from ci_tasks.given_values import GivenValues
from ci_tasks.logs.job_log import AnalysedLog
from ci_tasks.logs.job_row import commit_from_variables, context_of_log, identify_row, row_candidates
from ci_tasks.logs.recovered_job import RecoveredJob
from ci_tasks.records import EXIT_CODES, PASSED, VACUOUS, RunRecord, Triage
from ci_tasks.report import results
from ci_tasks.report.table import Table, duration, paragraph
from ci_tasks.report.triage import describe
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, event_context, find_checkout, open_source, origin
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials import report, rules, same_failure
from ci_tasks.trials.compare import ComparisonRequest, ComparisonResult, compare_rows, open_base
from ci_tasks.trials.pinned_tree import pinned
from ci_tasks.trials.rules import Match, Outcome, Verdict
from ci_tasks.trials.runner import Execute, Runner, Subject
from ci_tasks.trials.same_failure import Comparison, Difference
from ci_tasks.trials.source_line import with_statement
from ci_tasks.trials.trial import Trial
from ci_tasks.trials.words import CANCELLED, ON_MY_TREE, REPRODUCE
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import job_of, select
from ci_tasks.workflow.suite import label_of

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream
    from ci_tasks.trials.options import ReproduceOptions

_HERE = "here"
_UNSURE = 0.5  # a triage's confidence below which two equal failures say little
_LONGEST = 200
_UNKNOWN, _NONE = "not in the log", "none"
_MOST_PACKAGES = 12


@dataclass(frozen=True)
class ReproductionResult:
    """As `reproduce --json` prints it. `verdict` is that of the comparison, or `cancelled` or `vacuous` where no run
    came to an end; `ci` is what CI's log says, `run` the run that shows the verdict. `same` is the
    equal evidence, `differs` the other, as each side has it. `comparison` is that of --base."""

    verdict: str
    why: str
    exit_code: int
    ci: Triage
    run: RunRecord | None = None
    same: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()
    comparison: ComparisonResult | None = None


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
    source, recovered, row = _job_of_log(log.job, options, config.given)
    width = terminal_width()
    print("\n".join([*_recovered(recovered, row.row, row.label, width), "", "CI's failure:"]))
    failure = describe(log.triage, width and width - 2)
    print("\n".join(f"  {line}".rstrip() for line in failure), "", sep="\n", flush=True)
    base = recovered.merge_base if source.suite.is_changed(row.label) and not options.on_my_tree else None
    image = options.image or _pinned(recovered)
    request = RunRequest(row.label, None, options.host, base or None, keep=options.keep, image=image, rows=(row.row,))
    request = replace(request, probe=not options.no_probe)
    print(source.headline, flush=True)
    rows = _rows_to_compare(request, source, options)
    if rows:
        open_base(source, config, rows)  # before anything runs: is there such a base, and has it the row?
    ci = with_statement(log.triage, source.path, recovered.commit)
    runs, compared = options.repeat or 1, dict[str, Comparison]()
    with ExitStack() as stack:
        tree = stack.enter_context(pinned(source, base or None)) if runs > 1 else None
        subject = Subject(source, request, tree)
        how = ExecutionOptions(events=events)
        runner = Runner(config, lambda _: subject, [options.host], how, live=runs == 1, execute=execute)

        def match(outcome: Outcome) -> str:
            record = _with_statement(runner.record(outcome), source)
            compared[outcome.run] = (
                same_failure.compare(ci, record.triage) if record.triage else Comparison(rules.DIFFERENT)
            )
            return compared[outcome.run].outcome

        trial = Trial("reproduce", {_HERE: ""}, request.rows, runner, has_journal=False, show=_shown)
        with trial:
            trial.run(lambda row, known: Match(_HERE, match, runs))
    outcomes = trial.outcomes
    if trial.is_interrupted or not outcomes:
        word = CANCELLED if trial.is_interrupted else VACUOUS
        last = runner.record(outcomes[-1]) if outcomes else None
        return ReproductionResult(word, "no verdict", EXIT_CODES[word], log.triage, last)
    verdict = trial.verdict(row.row)
    shows = _showing(verdict, outcomes, compared)
    result = _result(verdict, ci, runner.record(shows), compared.get(shows.run), len(outcomes), options.on_my_tree)
    _print(result, shows, source, recovered)
    if rows is None or verdict.word not in (rules.REPRODUCED, rules.SAME_KIND, rules.DIFFERENT_FAILURE):
        return result
    return replace(result, comparison=compare_rows(source, config, rows, events, execute=execute))


def _shown(number: int, one: Outcome) -> str:
    return report.line(number, one, one.row)


def _showing(verdict: Verdict, outcomes: Sequence[Outcome], compared: Mapping[str, Comparison]) -> Outcome:
    """The run that shows the verdict."""
    shown_by = {rules.REPRODUCED: rules.SAME, rules.SAME_KIND: rules.ALIKE, rules.DIFFERENT_FAILURE: rules.DIFFERENT}
    wanted = shown_by.get(verdict.word)
    fits = [one for one in outcomes if one.run in compared and compared[one.run].outcome == wanted]
    return (fits or [one for one in outcomes if one.counts] or outcomes)[0]


def _result(
    verdict: Verdict, ci: Triage, record: RunRecord, found: Comparison | None, runs: int, on_my_tree: bool
) -> ReproductionResult:
    word = rules.FIXED_HERE if on_my_tree and verdict.word == rules.PASSED_HERE else verdict.word
    same, differs = (found.same, found.differs) if found else ((), ())
    there = truncated(ci.text or ci.line or "no reason in its log", _LONGEST)
    here = truncated((record.triage and record.triage.text) or record.reason or record.status, _LONGEST)
    why = verdict.why
    if verdict.word == rules.REPRODUCED:
        why += f": {there}; equal on both sides: {_listed(same)}"
        why += "; the log says little of why, so this is a weak sign" if ci.confidence < _UNSURE else ""
    elif verdict.word == rules.SAME_KIND and differs:
        why = f"alike, but not the same: {_listed(map(str, differs))}"
    elif verdict.word in (rules.SAME_KIND, rules.DIFFERENT_FAILURE):
        why += f". CI: {there}; here: {here}"
    elif verdict.word == rules.PASSED_HERE and ci.verdict == rules.BLOCKED:
        why += f"; CI's failure was its environment's ({ci.cause})"
    elif verdict.word == rules.PASSED_HERE and runs == 1:
        why += "; `--repeat 20` tells whether it is flaky"
    codes = ON_MY_TREE if on_my_tree else REPRODUCE
    return ReproductionResult(word, why, codes[word], ci, record, same, differs)


def _listed(items: Iterable[str]) -> str:
    return "; ".join(truncated(item, _LONGEST) for item in items)


def _print(result: ReproductionResult, shows: Outcome, source: CheckoutSource, recovered: RecoveredJob) -> None:
    """The run that shows it, CI's job beside it, and the word."""
    record, width = result.run, terminal_width()
    assert record is not None
    differences = results.deviations([_without_code_deviation(record, recovered)], width)
    shown = results.table([record], [shows.log], width)
    print("\n".join(["", *shown, "", *_beside(recovered, record, width), "", *differences, ""]))
    print(f"{result.verdict}: {one_line(result.why)}", flush=True)
    if result.verdict == rules.BLOCKED:
        print("nothing was shown about the code: repair the environment, or name another --host")
    if result.verdict == rules.SAME_KIND:
        print("it is not shown to be the same failure; `--repeat 20` may show it, `diff` compares two runs")


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
        if not workflow_rows.missing_outputs(job, context):
            job_rows.append((job, workflow_rows.rows(source.workflow, job, context, source.suite.describe)))
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
    near = "".join(f"\n  --label {shlex.quote(row.label)} --only {shlex.quote(row.row)}" for row in which.nearest)
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


def _rows_to_compare(
    request: RunRequest, source: CheckoutSource, options: ReproduceOptions
) -> ComparisonRequest | None:
    """What --base asks for. The checkout has the branches; a commit that was fetched beside it shares its objects."""
    if options.base is None:
        return None
    path = find_checkout(options.repo)[0]
    return ComparisonRequest(request, resolve_base(path, options.base) if path != source.path else options.base)


def _recovered(job: RecoveredJob, row: str, label: str, width: int | None = None) -> list[str]:
    """The job that failed in CI, a line each; then what its log did not say."""
    pull = f", pull request {job.pull_request}" if job.pull_request else ""
    merged = f" (merge of {job.merge_head[:12]} into {job.merge_base[:12]})" if job.merge_head else ""
    facts = [
        ("job", job.job_name),
        ("row", f"{label} / {row}" if row else ""),
        ("commit", f"{job.commit}{merged}{pull}" if job.commit else ""),
        ("image", f"{job.image}{f' @ {job.digest}' if job.digest else ''}"),
        ("runner", job.runner_name),
        ("step", ", exit code ".join(filter(None, [job.failed_step, _code(job.exit_code)]))),
        ("took", duration(job.ended - job.started) if job.ended and job.started else ""),
    ]
    lines = Table([(f"  {name}:", value) for name, value in facts if value]).text(width)
    missing = [line for sentence in job.missing for line in paragraph(f"not recovered: {sentence}", width, "  ")]
    return ["CI's job:", *lines, *missing]


def _beside(job: RecoveredJob, record: RunRecord, width: int | None = None) -> list[str]:
    """CI / here, a line each: what is equal is said so, since that is what a person wants to be sure of."""
    environment = record.environment
    container = next(iter(environment.containers), ContainerState(""))
    ours = record.checkout
    commit = "" if ours is None else ours.title if ours.dirty else (ours.head or ours.commit)[:12]
    gpus = [gpu.name for gpu in environment.gpus]
    body = [
        ("commit", job.commit[:12], commit),
        ("image", job.image, environment.image or ""),
        ("digest", job.digest, _digest(container, job.digest)),
        ("exit code", _code(job.exit_code), _code(record.exit_code)),
        ("machine", job.runner_name, record.host or ""),
        ("GPU", _model(job.gpu_models), _model(gpus)),
        ("driver", job.driver, environment.driver or ""),
        *_packages(job.packages, container.packages or environment.packages or {}),
    ]
    lines = [(what, ci or _UNKNOWN, here or _NONE, _equal(ci, here)) for what, ci, here in body]
    return Table(lines, ("", "CI", "HERE", "")).text(width)


def _equal(ci: str, here: str) -> str:
    if not ci:
        return ""
    return "same" if ci == here else "DIFFERS"


def _digest(container: ContainerState, expected: str) -> str:
    """Of an image's digests, one for each repository it was pulled from, CI's if it is among them."""
    digests = [reference.partition("@")[2] for reference in container.digests]
    return expected if expected in digests else next(iter(digests), "")


def _packages(ci: Mapping[str, str], here: Mapping[str, str | None]) -> Sequence[tuple[str, str, str]]:
    """Those that both name, in another version."""
    own = {_canonical(name): version for name, version in here.items() if version is not None}
    differ = [
        (f"package {name}", version, own[_canonical(name)])
        for name, version in sorted(ci.items())
        if _canonical(name) in own and own[_canonical(name)] != version
    ]
    return differ[:_MOST_PACKAGES]


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _model(models: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(models))
    return f"{len(models)} x {', '.join(kinds)}" if kinds else ""


def _code(code: int | None) -> str:
    return "" if code is None else str(code)
