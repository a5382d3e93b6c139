"""The summary of a level's run that has ended, from its directory alone, so that `attach` can end with it as well; and
of a log alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError
from ci_tasks.features.verl import report
from ci_tasks.features.verl.judge.learning import REWARD, series
from ci_tasks.features.verl.judge.summary_text import judge
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, PreflightCheck, RunFacts, TrainingFacts, read_run
from ci_tasks.features.verl.judge.verdict import LevelRun, Provenance, RunEnd
from ci_tasks.features.verl.level_context import LevelContext, read_context
from ci_tasks.features.verl.levels.job import LABEL
from ci_tasks.features.verl.levels.levels import LevelRequest, trainings
from ci_tasks.features.verl.levels.script import BRIDGE
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, NOT_PROVEN, PASS, Summary
from ci_tasks.records import CANCELLED, PASSED, RunRecord
from ci_tasks.results.probe_evidence import read_run_evidence

RESULT_CODES = {PASS: 0, FAIL: 1, NOT_PROVEN: 4, BLOCKED: 125}
_MOST_DIRTY = 10


def attached(record: RunRecord, directory: str) -> int | None:
    """Print and store the summary of a run that was attached to. Returns the exit code of its result; None for
    what is no level, or was cancelled."""
    context = read_context(directory)
    if context is None and record.label == LABEL:
        print(f"{record.id}: no summary: the machine that started the level has what it is made from")
    if context is None or record.status == CANCELLED:
        return None
    return RESULT_CODES[conclude(context, record, directory).result]


def conclude(context: LevelContext, record: RunRecord, directory: str, *, markdown: bool = False) -> Summary:
    """Judge the run, print its summary and store it in the run's directory."""
    summary = evaluate(context, record, directory).summary
    written = f"the summary, as text, markdown and JSON: {directory}"
    lines = report.markdown(summary).splitlines() if markdown else report.text(summary)
    print("\n".join(["", *lines, "", written]), flush=True)
    return summary


@dataclass(frozen=True)
class EvaluatedRun:
    """`facts` are what the log says, `evidence` is what the probe noted, None without it."""

    summary: Summary
    facts: RunFacts
    evidence: RunEvidence | None


def evaluate(context: LevelContext, record: RunRecord, directory: str) -> EvaluatedRun:
    """Judge the run and store its summary in its directory."""
    run = RunDir(directory)
    workspace = read_plan(run).workspace
    identity = image_identity(record)
    host = record.host or context.host
    provenance = Provenance(
        bridge=repository(context.bridge),
        verl=repository(context.verl),
        command=context.command,
        log=run.log if Path(run.log).exists() else "",
        image=f"{context.image}, {identity or 'digest not seen'}" if context.image else "",
        host=host,
        root=f"{workspace}/{BRIDGE}" if workspace else "",
        simulated=host if context.simulated else "",
    )
    facts = read_run(lambda: pieces_of(run.log), context.request.proofs)
    evidence = read_run_evidence(run)
    overlays = (
        f"{item.what}: {item.here}; {item.why}" for item in record.deviations if item.what.startswith("overlay ")
    )
    summary = judge(
        LevelRun(
            context.request,
            trainings(context.request, context.scripts),
            facts,
            RunEnd(record.status, record.reason),
            provenance,
            read_baseline(Path(context.baseline)) if context.baseline else None,
            evidence,
            (*context.remarks, *overlays),
        )
    )
    for name, text in (
        ("summary.txt", "\n".join(report.text(summary)) + "\n"),
        ("summary.md", report.markdown(summary)),
        ("summary.json", json.dumps(report.public(summary), indent=1, ensure_ascii=False) + "\n"),
    ):
        Path(directory, name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return EvaluatedRun(summary, facts, evidence)


def judge_log(
    log: Path, request: LevelRequest, *, command: str = "", exit_code: int | None = None, baseline: Path | None = None
) -> Summary:
    """What an existing log shows of a level, as people have it who ran the wrapper themselves: of the level's own
    trainings, each from where the trainer prints its settings. What a log cannot show is not seen.
    Raises UsageError."""
    if not log.is_file():
        raise UsageError(f"--log names {log}, which is no file")
    planned = [one for one in trainings(request) if one.level == request.level]
    facts = read_run(lambda: pieces_of(str(log)), request.proofs, [one.name for one in planned])
    for training in facts.trainings.values():
        training.exit_code = exit_code if training.exit_code is None else training.exit_code
    if request.checks:
        facts.preflight.setdefault(BRIDGE_CHECKS, PreflightCheck(BRIDGE_CHECKS, "cited", request.checks))
    unknown = "not known: only a log was judged"
    status = PASSED if exit_code in (0, None) else "failed"
    base = read_baseline(baseline) if baseline else None
    provenance = Provenance(unknown, unknown, command, str(log))
    return judge(LevelRun(request, planned, facts, RunEnd(status), provenance, base))


def read_baseline(path: Path) -> TrainingFacts:
    """The last training with rewards in a baseline's log. Raises UsageError where it has none to compare with."""
    if not path.is_file():
        raise UsageError(f"--baseline names {path}, which is no file")
    found = read_run(lambda: pieces_of(str(path)), names=("baseline",)).trainings.values()
    rewarded = [one for one in found if series(one.metrics, REWARD)]
    if not rewarded:
        raise UsageError(
            f"--baseline {path} has no {REWARD} of any step",
            hint="give the log of a training of level 5: the file `log` in its run directory, or verl's console output",
        )
    return rewarded[-1]


def image_identity(record: RunRecord) -> str:
    """The digest of the image that ran; of one that was never pulled, its id. "" where no container was seen."""
    ids = [container.image_id for container in record.environment.containers if container.image_id]
    return record.environment.digest or next(iter(ids), "")


def repository(tree: Checkout) -> str:
    """Its commit, which git knows, plus the files that differ from it."""
    dirty: Sequence[str] = tree.dirty
    if not tree.head:
        return "no git repository"
    more = f" and {len(dirty) - _MOST_DIRTY} more" if len(dirty) > _MOST_DIRTY else ""
    return (
        f"{tree.head[:12]} plus {', '.join(dirty[:_MOST_DIRTY])}{more}"
        if dirty
        else f"{tree.head[:12]}, no dirty files"
    )
