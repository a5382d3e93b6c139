"""What was recovered from CI's log, and CI's run beside ours: every input that differed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci_tasks.agent.records import ContainerState
from ci_tasks.logs.job_steps import RecoveredJob
from ci_tasks.records import RunRecord
from ci_tasks.report.table import Table, paragraph

_UNKNOWN, _NONE = "not in the log", "none"
_MOST_PACKAGES = 12


def recovered(job: RecoveredJob, row: str, label: str, width: int | None = None) -> list[str]:
    """The job that failed in CI, a line each; then what its log did not say."""
    pull = f", pull request {job.pull_request}" if job.pull_request else ""
    merged = f" (merge of {job.merge_head[:12]} into {job.merge_base[:12]})" if job.merge_head else ""
    facts = [
        ("job", job.job_name),
        ("row", f"{label} / {row}" if row else ""),
        ("commit", f"{job.commit}{merged}{pull}" if job.commit else ""),
        ("image", f"{job.image}{f' @ {job.digest}' if job.digest else ''}"),
        ("runner", job.runner_name),
        ("step", f"{job.failed_step}{_ended(job)}"),
        ("took", _minutes(job.ended - job.started) if job.ended and job.started else ""),
    ]
    lines = Table([(f"  {name}:", value) for name, value in facts if value]).text(width)
    missing = [line for sentence in job.missing for line in paragraph(f"not recovered: {sentence}", width, "  ")]
    return ["CI's job:", *lines, *missing]


def comparison(job: RecoveredJob, record: RunRecord, width: int | None = None) -> list[str]:
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


def _ended(job: RecoveredJob) -> str:
    return f", exit code {job.exit_code}" if job.exit_code is not None else ""


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
