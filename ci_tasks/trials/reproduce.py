"""`reproduce`: from a failed job's log to whether it fails here as well."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, one_line, truncated
from ci_tasks.logs.job_log import AnalysedLog
from ci_tasks.records import EXIT_CODES, PASSED, VACUOUS, RunRecord, Triage
from ci_tasks.report import results
from ci_tasks.report.triage import describe
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials import rules, same_failure
from ci_tasks.trials.ci_job import CiJob, find_job, is_commit_of, recovered_lines, with_job_deviations
from ci_tasks.trials.rules import Match, Outcome, TrialVerdict
from ci_tasks.trials.runner import Execute, Runner, Subject, pinned
from ci_tasks.trials.same_failure import Comparison, FailureDifference
from ci_tasks.trials.trial import Trial
from ci_tasks.trials.words import CANCELLED, ON_MY_TREE, REPRODUCE

if TYPE_CHECKING:
    from ci_tasks.run.events import EventStream
    from ci_tasks.trials.options import ReproduceOptions

_HERE = "here"
_UNSURE = 0.5  # a triage's confidence below which two equal failures say little
_LONGEST = 200
_SHOWN_BY = {rules.REPRODUCED: rules.SAME, rules.SAME_KIND: rules.ALIKE, rules.DIFFERENT_FAILURE: rules.DIFFERENT}


@dataclass(frozen=True)
class ReproductionResult:
    """As `reproduce --json` prints it. `verdict` is that of the comparison, or `cancelled` or `vacuous` where no run
    came to an end; `ci` is what CI's log says, `run` the run that shows the verdict. `same` is the equal evidence,
    `differs` the other, as each side has it."""

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
                return rules.DIFFERENT
            compared[outcome.run] = same_failure.compare(log.triage, record.triage, same_tree=is_commit_of(job, record))
            return compared[outcome.run].outcome

        more = {"host": options.host, "label": request.label, "commit": job.commit, "failure": log.triage.signature}
        with Trial("reproduce", {_HERE: ""}, request.rows, runner, more=more, resume=False) as trial:
            trial.run(lambda *_: Match(_HERE, match, runs))
    trial.path.unlink(missing_ok=True)  # the same command begins again
    outcomes = trial.outcomes
    if trial.is_interrupted or not outcomes:
        word = CANCELLED if trial.is_interrupted else VACUOUS
        last = runner.record(outcomes[-1]) if outcomes else None
        return ReproductionResult(word, "no verdict", EXIT_CODES[word], log.triage, last)
    verdict = trial.verdict(job.row.row)
    wanted = _SHOWN_BY.get(verdict.word)
    shows = [one for one in outcomes if one.run in compared and compared[one.run].outcome == wanted]
    shown = (shows or [one for one in outcomes if one.counts] or outcomes)[0]
    record = with_job_deviations(runner.record(shown), job)
    result = _result(verdict, log.triage, record, compared.get(shown.run, Comparison("")), options)
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
    return RunRequest(
        job.row.label,
        host=options.host,
        base=(ci.merge_base or None) if is_changed else None,
        keep=options.keep,
        image=image,
        rows=(job.row.row,),
        probe=not options.no_probe,
    )


def _result(
    verdict: TrialVerdict, ci: Triage, record: RunRecord, found: Comparison, options: ReproduceOptions
) -> ReproductionResult:
    """The verdict, with what was equal or differs, and the next step."""
    there = truncated(ci.text or ci.line or "no reason in its log", _LONGEST)
    here = truncated((record.triage and record.triage.text) or record.reason or record.status, _LONGEST)
    differs = "; ".join(truncated(str(item), _LONGEST) for item in found.differs) or f"CI: {there}; here: {here}"
    weak = "; the log says little of why, so this is a weak sign" if ci.confidence < _UNSURE else ""
    environment = f"; CI's failure was its environment's ({ci.cause})" if ci.verdict == rules.BLOCKED else ""
    often = "" if options.repeat or environment else "; `--repeat 20` tells whether it is flaky"
    more = {
        rules.REPRODUCED: f": {there}; equal on both sides: {truncated('; '.join(found.same), 2 * _LONGEST)}{weak}",
        rules.SAME_KIND: f": {differs}; `--repeat 20` may show it, `diff` compares two runs",
        rules.DIFFERENT_FAILURE: f": {differs}",
        rules.PASSED_HERE: f"{environment}{often}",
        rules.BLOCKED: "; nothing was shown about the code: repair the environment, or name another --host",
    }
    is_fixed = options.on_my_tree and verdict.word == rules.PASSED_HERE
    word, why = rules.FIXED_HERE if is_fixed else verdict.word, verdict.why + more[verdict.word]
    codes = ON_MY_TREE if options.on_my_tree else REPRODUCE
    return ReproductionResult(word, why, codes[word], ci, record, found.same, found.differs)
