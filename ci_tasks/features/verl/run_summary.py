"""The summary of a level's run that has ended, from its directory alone, so that `attach` can end with it as well; and
of a log alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ci_tasks.agent.codec import encode
from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.verl.judge.learning import REWARD, series
from ci_tasks.features.verl.judge.records import RESULT_CODES, Deliverable, Summary
from ci_tasks.features.verl.judge.summary import Provenance, summarize, text
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, RunFacts, TrainingFacts, read_run
from ci_tasks.features.verl.judge.verdict import LevelRun
from ci_tasks.features.verl.level_run import LevelContext, read_context
from ci_tasks.features.verl.levels.job import LABEL
from ci_tasks.features.verl.levels.levels import LevelRequest, trainings
from ci_tasks.features.verl.levels.script import BRIDGE
from ci_tasks.records import CANCELLED, PASSED, RunRecord
from ci_tasks.results.probe_evidence import read_run_evidence

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


def criteria(directory: str) -> list[str]:
    """What `report` adds: the result, and the criteria of each training; empty for what is no level that has ended."""
    file = Path(directory, "summary.json")
    if not file.exists() or read_context(directory) is None:
        return []
    summary = json.loads(file.read_text(encoding="utf-8"))
    lines = [f"verl: {summary['result']} - {summary['sentence']}"]
    for training in summary["criteria"]:
        lines.append(f"{training['training']}: {training['status']}")
        lines += [f"  {one['name']}: {one['outcome']}, {one['evidence']}" for one in training["criteria"]]
    return [printable(line) for line in lines]


def conclude(context: LevelContext, record: RunRecord, directory: str) -> Summary:
    """Judge the run, print its summary and store it in the run's directory."""
    summary = evaluate(context, record, directory).summary
    lines = text(summary)
    Path(directory, "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
    print("\n".join(["", *lines, "", f"the summary, as text and JSON: {directory}"]), flush=True)
    return summary


@dataclass(frozen=True)
class EvaluatedRun:
    summary: Summary
    facts: RunFacts


def evaluate(context: LevelContext, record: RunRecord, directory: str) -> EvaluatedRun:
    """Judge the run and store the result as summary.json in its directory."""
    run = RunDir(directory)
    workspace, host, image = read_plan(run).workspace, record.host or context.host, image_identity(record)
    facts = read_run(lambda: pieces_of(run.log), context.request.proofs)
    overlays = [f"{one.what}: {one.here}; {one.why}" for one in record.deviations if one.what.startswith("overlay ")]
    level = LevelRun(
        context.request,
        trainings(context.request, context.scripts),
        facts,
        record.status,
        record.reason,
        f"{workspace}/{BRIDGE}" if workspace else "",
        read_run_evidence(run),
        read_baseline(Path(context.baseline)) if context.baseline else None,
    )
    known = Provenance(
        bridge=repository(context.bridge),
        verl=repository(context.verl),
        command=context.command,
        log=run.log if Path(run.log).exists() else "",
        image=f"{context.image}, {image or 'digest not seen'}" if context.image else "",
        host=host,
        simulated=context.simulated,
        remarks=(*context.remarks, *overlays),
    )
    summary = summarize(level, known)
    stored = json.dumps(encode(summary), indent=1, ensure_ascii=False) + "\n"
    Path(directory, "summary.json").write_text(stored, encoding="utf-8", errors="backslashreplace")
    return EvaluatedRun(summary, facts)


def judge_log(log: Path, request: LevelRequest, command: str = "", baseline: Path | None = None) -> Summary:
    """What an existing log shows of a level, as people have it who ran the wrapper themselves: of the level's own
    trainings, each from where the trainer prints its settings. What a log cannot show is not seen.
    Raises UsageError."""
    if not log.is_file():
        raise UsageError(f"--log names {log}, which is no file")
    planned = [one for one in trainings(request) if one.level == request.level]
    facts = read_run(lambda: pieces_of(str(log)), request.proofs, [one.name for one in planned])
    if request.checks:
        facts.preflight.setdefault(BRIDGE_CHECKS, Deliverable(BRIDGE_CHECKS, "cited", request.checks))
    unknown = "not known: only a log was judged"
    base = read_baseline(baseline) if baseline else None
    return summarize(
        LevelRun(request, planned, facts, PASSED, baseline=base), Provenance(unknown, unknown, command, str(log))
    )


def read_baseline(path: Path) -> TrainingFacts:
    """The last training with rewards in a baseline's log. Raises UsageError if it has none to compare with."""
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
    """The digest of the image that ran; of one that was never pulled, its id. "" if no container was seen."""
    ids = [container.image_id for container in record.environment.containers if container.image_id]
    return record.environment.digest or next(iter(ids), "")


def repository(tree: Checkout) -> str:
    """Its commit, which git knows, plus the files that differ from it."""
    if not tree.head:
        return "no git repository"
    dirty: Sequence[str] = tree.dirty
    more = f" and {len(dirty) - _MOST_DIRTY} more" if len(dirty) > _MOST_DIRTY else ""
    return (
        f"{tree.head[:12]} plus {', '.join(dirty[:_MOST_DIRTY])}{more}"
        if dirty
        else f"{tree.head[:12]}, no dirty files"
    )
