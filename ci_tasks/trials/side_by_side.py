"""A job of CI and its run here, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ci_tasks.agent.records import Deviation
from ci_tasks.logs.recovered_job import RecoveredJob
from ci_tasks.planning.deviations import CODE
from ci_tasks.records import RunRecord
from ci_tasks.report.table import Table, duration, paragraph
from ci_tasks.trials.ci_job import CiJob

_MOST_PACKAGES = 12


def recovered_lines(job: CiJob, width: int | None = None) -> list[str]:
    """The job that failed in CI, a line each; then what its log did not say."""
    ci, row = job.recovered, job.row
    pull = f", pull request {ci.pull_request}" if ci.pull_request else ""
    merged = f" (merge of {ci.merge_head[:12]} into {ci.merge_base[:12]})" if ci.merge_head else ""
    facts = [
        ("job", ci.job_name),
        ("row", f"{row.label} / {row.row}"),
        ("commit", f"{ci.commit}{merged}{pull}" if ci.commit else ""),
        ("image", f"{ci.image}{f' @ {ci.digest}' if ci.digest else ''}"),
        ("runner", ci.runner_name),
        ("step", ", exit code ".join(filter(None, [ci.failed_step, _code(ci.exit_code)]))),
        ("took", duration(ci.ended - ci.started) if ci.ended and ci.started else ""),
    ]
    lines = Table([(f"  {name}:", value) for name, value in facts if value]).text(width)
    missing = [line for sentence in ci.missing for line in paragraph(f"not recovered: {sentence}", width, "  ")]
    return ["CI's job:", *lines, *missing]


def comparison_lines(ci: RecoveredJob, record: RunRecord, width: int | None = None) -> list[str]:
    """CI / here, a line each: what is equal is said so, since that is what a person wants to be sure of."""
    around = record.environment
    ours = record.checkout
    commit = "" if ours is None else ours.title if ours.dirty else (ours.head or ours.commit)[:12]
    # An image has a digest for each repository that it was pulled from.
    digests = [reference.partition("@")[2] for each in around.containers[:1] for reference in each.digests]
    body = [
        ("commit", ci.commit[:12], commit),
        ("image", ci.image, around.image),
        ("digest", ci.digest, ci.digest if ci.digest in digests else next(iter(digests), "")),
        ("exit code", _code(ci.exit_code), _code(record.exit_code)),
        ("machine", ci.runner_name, record.host),
        ("GPU", _models(ci.gpu_models), _models([gpu.name for gpu in around.gpus])),
        ("driver", ci.driver, around.driver),
        *_packages(ci.packages, around.packages),
    ]
    lines = [
        (what, there or "not in the log", here or "none", "" if not there else "same" if there == here else "DIFFERS")
        for what, there, here in body
    ]
    return Table(lines, ("", "CI", "HERE", "")).text(width)


def is_commit_of(job: CiJob, record: RunRecord) -> bool:
    """Whether the run's tree is that of CI's commit."""
    return record.checkout is not None and record.checkout.head == job.commit and not record.checkout.dirty


def with_job_deviations(record: RunRecord, job: CiJob) -> RunRecord:
    """The record's deviations from this very job: its own commit is none, a merge that was made again is one, and so is
    a secret only if CI had it."""
    ci, found = job.recovered, []
    for item in record.deviations:
        if item.what == CODE and is_commit_of(job, record) and job.is_merged_here:
            here = f"{ci.merge_head[:12]} merged into {ci.merge_base[:12]}"
            item = Deviation(CODE, f"merge commit {ci.commit[:12]}", here, "CI's commit is gone; its parents are here")
        elif item.what == CODE and is_commit_of(job, record):
            continue
        elif item.what == "secrets":
            item = replace(item, ci=", ".join(name for name in item.ci.split(", ") if name not in _empty(ci)))
        found += [item] if item.ci or item.what != "secrets" else []
    return replace(record, deviations=tuple(found))


def _empty(ci: RecoveredJob) -> set[str]:
    """Variables that the log shows without a value."""
    shown = [(name, value) for step in ci.steps for name, value in step.env.items()]
    return {name for name, _ in shown} - {name for name, value in shown if value}


def _packages(ci: Mapping[str, str], here: Mapping[str, str | None]) -> Sequence[tuple[str, str, str]]:
    """Those that both name, in another version."""
    own = {_canonical(name): version for name, version in here.items() if version is not None}
    pairs = [(name, version, own.get(_canonical(name), version)) for name, version in sorted(ci.items())]
    return [(f"package {name}", there, ours) for name, there, ours in pairs if there != ours][:_MOST_PACKAGES]


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _models(models: Sequence[str]) -> str:
    return f"{len(models)} x {', '.join(dict.fromkeys(models))}" if models else ""


def _code(code: int | None) -> str:
    return "" if code is None else str(code)
