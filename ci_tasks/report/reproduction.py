"""What was recovered from CI's log, and CI's run beside ours: every input that differed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.report.table import columns
from ci_tasks.workflow.cilog.recovered import Recovered

Record = Mapping[str, Any]
_UNKNOWN, _NONE = "not in the log", "none"
_MOST_PACKAGES = 12


def recovered(found: Recovered, row: str, label: str) -> list[str]:
    """The job that failed in CI, a line each; then what its log did not say."""
    pull = f", pull request {found.pull_request}" if found.pull_request else ""
    merged = f" (merge of {found.merge_head[:12]} into {found.merge_base[:12]})" if found.merge_head else ""
    facts = [
        ("job", found.job_name),
        ("row", f"{label} / {row}" if row else ""),
        ("commit", f"{found.commit}{merged}{pull}" if found.commit else ""),
        ("image", f"{found.image}{f' @ {found.digest}' if found.digest else ''}"),
        ("runner", found.runner_name),
        ("step", f"{found.failed_step}{_ended(found)}"),
        ("took", _minutes(found.ended - found.started) if found.ended and found.started else ""),
    ]
    lines = columns([(f"  {name}:", value) for name, value in facts if value])
    return ["CI's job:", *lines, *(f"  not recovered: {sentence}" for sentence in found.missing)]


def comparison(found: Recovered, record: Record) -> list[str]:
    """CI / here, a line each: what is equal is said so, since that is what a person wants to be sure of."""
    environment = record["environment"]
    container: Mapping[str, Any] = next(iter(environment.get("containers") or ()), {})
    checkout = record["checkout"] or {}
    dirty = f" and {len(checkout['dirty'])} uncommitted" if checkout.get("dirty") else ""
    gpus = [gpu["name"] for gpu in environment.get("gpus") or ()]
    body = [
        ("commit", found.commit[:12], f"{str(checkout.get('commit', ''))[:12]}{dirty}"),
        ("image", found.image, str(environment.get("image") or "")),
        ("digest", found.digest, _digest(container, found.digest)),
        ("exit code", _said(found.exit_code), _said(record["exit_code"])),
        ("machine", found.runner_name, str(record["host"])),
        ("GPU", _model(found.gpu_models), _model(gpus)),
        ("driver", found.driver, str(environment.get("driver") or "")),
        *_packages(found.packages, container.get("packages") or environment.get("packages") or {}),
    ]
    return columns(
        [("", "CI", "HERE", ""), *((what, ci or _UNKNOWN, here or _NONE, _equal(ci, here)) for what, ci, here in body)]
    )


def _equal(ci: str, here: str) -> str:
    if not ci:
        return ""
    return "same" if ci == here else "DIFFERS"


def _digest(container: Mapping[str, Any], wanted: str) -> str:
    """Of an image's digests, one for each repository it was pulled from, CI's if it is among them."""
    digests = [str(one).partition("@")[2] for one in container.get("digests") or ()]
    return wanted if wanted in digests else next(iter(digests), "")


def _packages(ci: Mapping[str, str], here: Mapping[str, str]) -> Sequence[tuple[str, str, str]]:
    """Those that both name, in another version."""
    own = {_canonical(name): version for name, version in here.items()}
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


def _said(code: int | None) -> str:
    return "" if code is None else str(code)


def _ended(found: Recovered) -> str:
    return f", exit code {found.exit_code}" if found.exit_code is not None else ""


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
