"""The summary of a level's run that has ended, from its directory alone, so that `attach` can end with it as well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError
from ci_tasks.features.verl import report
from ci_tasks.features.verl.judge.learning_signal import REWARD, series
from ci_tasks.features.verl.judge.log_records import Metrics, RunFacts
from ci_tasks.features.verl.judge.read_log import metrics_of, read_run
from ci_tasks.features.verl.judge.verdict_of_run import judge
from ci_tasks.features.verl.judge.verdict_of_training import LevelRun, RunEnd
from ci_tasks.features.verl.level_context import LevelContext, read_context
from ci_tasks.features.verl.levels.job import LABEL
from ci_tasks.features.verl.levels.levels import trainings
from ci_tasks.features.verl.levels.script import BRIDGE
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, NOT_PROVEN, PASS, Provenance, Summary
from ci_tasks.records import CANCELLED, RunRecord
from ci_tasks.results.probe_evidence import read_run_evidence

RESULT_CODES = {PASS: 0, FAIL: 1, NOT_PROVEN: 4, BLOCKED: 125}


def attached(record: RunRecord, directory: str) -> int | None:
    """Print and store the summary of a run that somebody came back to. Returns the exit code of its result; None for
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
    print("\n".join(["", *_shown(summary, markdown=markdown), "", written]), flush=True)
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
    provenance = Provenance(
        bridge_commit=context.bridge.commit[:12],
        verl_commit=context.verl.commit[:12],
        command=context.command,
        log=run.log if Path(run.log).exists() else "",
        bridge_dirty=context.bridge.dirty,
        verl_dirty=context.verl.dirty,
        image=_image(context.image, image_identity(record)),
        host=record.host or context.host,
        bridge_root=f"{workspace}/{BRIDGE}" if workspace else "",
    )
    facts = read_run(lambda: pieces_of(run.log), context.request.proofs)
    baseline = metrics_of(lambda: pieces_of(context.baseline)) if context.baseline else None
    ended, evidence = RunEnd(record.status, record.reason), read_run_evidence(run)
    judged = judge(
        LevelRun(
            context.request,
            trainings(context.request, context.scripts),
            facts,
            ended,
            provenance,
            baseline,
            evidence,
            context.scripts,
        )
    )
    overlays = (
        f"{item.what}: {item.here}; {item.why}" for item in record.deviations if item.what.startswith("overlay ")
    )
    summary = replace(judged, limitations=(*judged.limitations, *context.remarks, *overlays))
    for name, text in (
        ("summary.txt", "\n".join(report.text(summary)) + "\n"),
        ("summary.md", report.markdown(summary)),
        ("summary.json", json.dumps(report.public(summary), indent=1, ensure_ascii=False) + "\n"),
    ):
        Path(directory, name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return EvaluatedRun(summary, facts, evidence)


def read_baseline(path: Path) -> Metrics:
    """The metrics of a baseline's log. Raises UsageError where it has no rewards to compare with."""
    if not path.is_file():
        raise UsageError(f"--baseline names {path}, which is no file")
    metrics = metrics_of(lambda: pieces_of(str(path)))
    if not series(metrics, REWARD):
        raise UsageError(
            f"--baseline {path} has no {REWARD} of any step",
            hint="give the log of a training of level 5: the file `log` in its run directory, or verl's console output",
        )
    return metrics


def image_identity(record: RunRecord) -> str:
    """The digest of the image that ran; of one that was never pulled, its id. "" where no container was seen."""
    ids = [container.image_id for container in record.environment.containers if container.image_id]
    return record.environment.digest or next(iter(ids), "")


def _image(named: str, identity: str) -> str:
    """The image by its name, which may move, and by what ran."""
    return f"{named}, {identity or 'digest not seen'}" if named else ""


def _shown(summary: Summary, *, markdown: bool) -> list[str]:
    return report.markdown(summary).splitlines() if markdown else report.text(summary)
