"""record.json: what is known of a run after its end, put together from its directory. The judge decides, this reads."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from ci_tasks.errors import Blocked
from ci_tasks.judge.junit import Junit, read_junit
from ci_tasks.judge.log import LogFacts, read_log
from ci_tasks.judge.triage import Triage, triage
from ci_tasks.judge.verdict import Ended, judge, read_as, wants_triage, weigh
from ci_tasks.model import PASSED, Evidence, Verdict
from ci_tasks.runner import layout, process
from ci_tasks.runner.layout import RunDir, read_json, write_json
from ci_tasks.runs.waits import queued

_LONGEST_LINE = 1 << 16
_PIECE = 1 << 18
_LARGEST_JUNIT = 1 << 28  # what is cut off here is no XML any more, so the log has to do


def settle(run: RunDir) -> dict[str, Any]:
    """Judge an ended run, write its record.json and return it."""
    plan, status = read_json(run.plan), read_json(run.status)
    facts = log_facts(run)
    evidence = weigh(_junit(run), facts, plan.get("entry_point"))
    calls = _docker_calls(run)
    ended = Ended(
        end=status.get("end"),
        exit_code=status.get("exit_code"),
        error=str(status.get("error") or ""),
        timeout_minutes=plan["timeout_minutes"],
        log_error=str(status.get("log_error") or ""),
    )
    found = read_as(ended, log_triage(run, ended.exit_code)) if wants_triage(ended) else None
    contained = any(_contained(call) for call in calls)
    verdict = judge(ended, evidence, facts, test=plan["test"], containers=contained, triage=found)
    record = {
        **_record(plan, status, verdict, facts, calls, _environment(run), queued(run)),
        "triage": _public(found, verdict),
    }
    return _keep(run, record)


def not_begun(run: RunDir, status: str, reason: str) -> dict[str, Any]:
    """The record of a run that never began: blocked, or cancelled while it waited."""
    record = _record(read_json(run.plan), {}, Verdict(status, reason, Evidence("none")), LogFacts(), [])
    return _keep(run, record)


def load(run: RunDir) -> dict[str, Any]:
    """The record of a run, or what can be said of one without: it runs, or its client went away before the end."""
    record = read_json(run.record)
    if record:
        return record
    plan, status = read_json(run.plan), read_json(run.status)
    if status and is_over(run):
        return settle(run)
    state = "running" if status else "planned"
    return _record(plan, status, Verdict(state, "", Evidence("none")), LogFacts(), [])


def is_over(run: RunDir) -> bool:
    """Whether the run has ended, and all of it is here: one of another host may have ended with its log still there."""
    remote, status = read_json(run.remote), read_json(run.status)
    if remote:
        return bool(remote.get("complete"))
    return status.get("state") == layout.STATE_ENDED or not process.alive(status)


def _keep(run: RunDir, record: dict[str, Any]) -> dict[str, Any]:
    """Write record.json, which is the truth, and then tell the history, which may fail."""
    write_json(run.record, record)
    try:
        from ci_tasks.runs.history.index import note
    except Blocked:  # a Python that was built without SQLite
        return record
    note(run, record)
    return record


def _record(
    plan: dict[str, Any],
    status: dict[str, Any],
    verdict: Verdict,
    facts: LogFacts,
    calls: list[Any],
    environment: dict[str, Any] | None = None,
    waited: float | None = None,
) -> dict[str, Any]:
    started, ended = status.get("started_at"), status.get("ended_at")
    seen = [item for call in calls for item in call.get("deviations", [])]
    # What the adapter saw happen replaces what the plan foresaw under the same name.
    foreseen = [item for item in plan.get("deviations", []) if item["what"] not in {other["what"] for other in seen}]
    deviations = [*foreseen, *seen]
    return {
        "id": plan.get("id"),
        "label": plan.get("label"),
        "row": plan.get("row"),
        "host": plan.get("host"),
        "status": verdict.status,
        "reason": verdict.reason,
        "exit_code": status.get("exit_code"),
        "started_at": _iso(started),
        "ended_at": _iso(ended),
        "timings": {"seconds": round(ended - started, 3) if started and ended else None, "queued": waited},
        "checkout": plan.get("checkout"),
        "gpus": plan.get("gpus"),
        "gpu_ids": list(facts.gpu_ids) or list(status.get("gpu_ids") or []),
        "log": {"bytes": status.get("log_bytes", 0), "sha256": status.get("log_sha256")},
        "evidence": asdict(verdict.evidence),
        "metrics": {name: value if math.isfinite(value) else str(value) for name, value in facts.values.items()},
        "triage": None,
        "deviations": _unique(deviations),
        "environment": {"runtime": plan.get("runtime"), "image": plan.get("image"), **(environment or {})},
    }


def log_facts(run: RunDir) -> LogFacts:
    """What the log of a run says; nothing where there is none."""
    try:
        with open(run.log, "rb") as source:
            if stat.S_ISREG(os.fstat(source.fileno()).st_mode):  # a log sent to a device may have no end
                return read_log(_lines(source))
            return LogFacts()
    except OSError:
        return LogFacts()


def log_triage(run: RunDir, exit_code: int | None) -> Triage:
    """Why a run ended with `exit_code`, as far as its log says."""
    try:
        with open(run.log, "rb", buffering=0) as source:
            if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return triage(iter(lambda: source.read(_PIECE), b""), exit_code)
    except OSError:
        pass
    return triage([], exit_code)


def _public(found: Triage | None, verdict: Verdict) -> dict[str, Any] | None:
    """The record's triage; a row that passed has none."""
    return found.public() if found is not None and verdict.status != PASSED else None


def _lines(source: Any) -> Iterator[bytes]:
    """Lines of bounded length, so that 100 MB without a newline stay 64 KiB: of a longer one its beginning, or its end
    where that is a progress bar's, which writes its line again and again."""
    while line := source.readline(_LONGEST_LINE):
        more = line
        while more and not more.endswith(b"\n"):
            more = source.readline(_LONGEST_LINE)
            if b"\r" in more.rstrip(b"\r\n"):
                line = more
        yield line


def _junit(run: RunDir) -> Junit | None:
    try:
        with open(run.junit, "rb") as source:
            return read_junit(source.read(_LARGEST_JUNIT))
    except OSError:
        return None


def _environment(run: RunDir) -> dict[str, Any]:
    """What the runner found out about the machine and its images."""
    try:
        return read_json(run.environment)
    except (OSError, ValueError):
        return {}


def _docker_calls(run: RunDir) -> list[dict[str, Any]]:
    try:
        with open(run.docker, encoding="utf-8") as source:
            found = json.load(source)
    except (OSError, ValueError):
        return []
    return [call for call in found if isinstance(call, dict)] if isinstance(found, list) else []


def _contained(call: dict[str, Any]) -> bool:
    return call.get("runtime") in ("docker", "podman")


def _iso(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds") if seconds else None


def _unique(deviations: list[Any]) -> list[Any]:
    return list({json.dumps(item, sort_keys=True): item for item in deviations}.values())
