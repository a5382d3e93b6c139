"""A run, a record.json or a CI log → one side of a comparison: what was seen of its inputs and results.

An axis that nobody noted is left out, so that it counts as not seen. Of the environment the variables of the plan are
read: those of the machine are none of the row's inputs. Paths and names that every run has of its own are replaced.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ci_tasks.agent.codec import RecordError, from_json
from ci_tasks.agent.files import open_file, pieces_of
from ci_tasks.agent.records import DirectUrl, Plan
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError
from ci_tasks.features.difference.logged import LoggedResults, read_results
from ci_tasks.features.difference.result import (
    ARGUMENTS,
    COMMIT,
    DATA,
    DEVIATIONS,
    DRIVER,
    ENV,
    GPUS,
    HOST,
    IMAGE,
    KERNEL,
    MOUNT,
    NOT_SEEN,
    OVERLAY,
    PACKAGES,
    OverlaySide,
    RunSide,
)
from ci_tasks.logs.job_log import AnalysedLog, from_file, open_text
from ci_tasks.logs.metrics import Series, read_series
from ci_tasks.logs.reading import reading_of
from ci_tasks.records import RunRecord
from ci_tasks.registry import metric_formats
from ci_tasks.results.load import load_record
from ci_tasks.results.runs import events_of

Inputs = dict[str, Mapping[str, str]]
# As the hub's cache names what was read: models--ORG--NAME/snapshots/COMMIT.
_REVISION = re.compile(rb"(models|datasets)--([\w.-]{1,200})/snapshots/([0-9a-f]{40})")
_HASH = re.compile(r"[0-9a-f]{7,64}")
# Deviations that other axes tell better, and the container's name, which each run has its own of.
_COVERED = ("code", "Python packages", "GPUs", "pull request", "image", "name")


def of_file(path: str) -> RunSide:
    """The record or the CI log in a file. Raises UsageError for what is neither."""
    file = Path(path)
    with file.open("rb") as opened:
        is_record = opened.read(1) == b"{"
    if not is_record:
        side = _of_log(from_file(path))
        with open_text(path) as lines:
            return replace(side, series=read_series(lines, metric_formats()), log=path, from_ci=True)
    try:
        record = from_json(RunRecord, file.read_bytes(), where=path)
    except RecordError as error:
        raise UsageError(str(error), hint="a run's record.json, or CI's log of a job") from None
    return _of_record(record, None, {}, (), {})


def of_run(run: RunDir) -> RunSide:
    """A run that is kept here. Raises UnreadableRun, OSError."""
    record = load_record(run)
    side = _of_record(
        record,
        _plan(run),
        _revisions(pieces_of(run.log)),
        reading_of(run.log).series if os.path.exists(run.log) else (),
        _phases(run),
    )
    return replace(side, log=run.log)


def logged_results(side: RunSide) -> LoggedResults:
    """What its log prints of results; nothing if there is no log. Raises OSError."""
    if not side.log:
        return LoggedResults({}, {})
    with open_text(side.log) if side.from_ci else open_file(side.log) as lines:
        return read_results(lines, metric_formats())


def _of_record(
    record: RunRecord,
    plan: Plan | None,
    revisions: Mapping[str, str],
    series: tuple[Series, ...],
    phases: Mapping[str, float],
) -> RunSide:
    checkout = record.checkout
    overlays = checkout.overlays if checkout else ()
    return RunSide(
        id=record.id,
        label=record.label,
        row=record.row,
        host=record.host or "",
        status=record.status,
        started_at=record.started_at or "",
        head=_commit(checkout.head) if checkout and not checkout.sample else "",
        dirty=checkout.dirty if checkout else (),
        image=record.environment.digest or "",
        repository=checkout.path if checkout else "",
        overlays={
            # Of a run that was not begun here the directory is another machine's, and its build is nobody's command.
            each.name: OverlaySide(each.path, "" if each.dirty else _commit(each.head), each.build)
            if plan is not None
            else OverlaySide()
            for each in overlays
        },
        inputs=_inputs(record, plan, revisions),
        triage=record.triage,
        reason=record.reason,
        metrics={name: number for name, value in record.metrics.items() if (number := _number(value)) is not None},
        series=series,
        seconds=_seconds(record, phases),
        memory=_memory(record),
        partial=frozenset((DATA,)),
    )


def _commit(text: str) -> str:
    """A record of others may hold any text, and git and a shell get this one."""
    return text if _HASH.fullmatch(text) else ""


def _inputs(record: RunRecord, plan: Plan | None, revisions: Mapping[str, str]) -> Inputs:
    around, checkout, deviations = record.environment, record.checkout, record.deviations
    inputs: Inputs = {HOST: {"host": record.host or "local"}}
    if checkout is not None:
        inputs[COMMIT] = {"commit": checkout.title, "tree": (checkout.own_tree or checkout.tree)[:12]}
        for overlay in checkout.overlays:
            prefix = f"overlay {overlay.name}: "  # deviations that say more of it
            more = {each.what.removeprefix(prefix): each.here for each in deviations if each.what.startswith(prefix)}
            inputs[f"{OVERLAY}{overlay.name}"] = {"commit": overlay.title, "tree": overlay.tree[:12], **more}
    if around.digest:
        inputs[IMAGE] = {"image": around.digest}
    elif around.runtime == "none":
        inputs[IMAGE] = {"image": "no container"}
    packages, direct = _packages(record)
    if packages:
        watched = {module.name: module.commit for module in around.imported if module.commit}
        inputs[PACKAGES] = {"Python": around.python or NOT_SEEN}
        inputs[PACKAGES] = {
            **inputs[PACKAGES],
            **{
                name: _own(_version(name, packages, direct, watched), record, plan)
                for name in sorted(packages, key=str.lower)
            },
        }
    if plan is not None:
        inputs[ENV] = {name: _own(value, record, plan) for name, value in {**plan.env, **plan.host_env}.items()}
        inputs[ARGUMENTS] = {"test": plan.test or "none", "arguments": plan.args, "nodes": str(plan.nodes)}
        mounts = plan.container.mounts if plan.container is not None else {}
        inputs[DATA] = {**{f"{MOUNT}{ci}": here for ci, here in mounts.items()}, **revisions}
    if around.driver:
        inputs[DRIVER] = {"driver": around.driver}
    if around.gpus:
        inputs[GPUS] = _counted(gpu.name for gpu in around.gpus)
    elif plan is not None and plan.is_simulated:
        inputs[GPUS] = {"GPUs": f"{record.gpus} simulated"}
        inputs[DRIVER] = {"driver": "simulated GPUs"}
    elif not record.gpus:
        inputs[GPUS] = {"GPUs": "none"}
    if not record.gpus:
        inputs.setdefault(DRIVER, {"driver": "no GPU is used"})
    if around.kernel:
        inputs[KERNEL] = {"kernel": around.kernel}
    inputs[DEVIATIONS] = {
        each.what: _own(each.here, record, plan)
        for each in deviations
        if each.what not in _COVERED and not each.what.startswith("overlay ")
    }
    return inputs


def _of_log(log: AnalysedLog) -> RunSide:
    """What CI's log shows of its job, which deviates from nothing."""
    job = log.job
    inputs: Inputs = {DEVIATIONS: {}}
    if job.scripts:
        last = job.scripts[-1]
        inputs[ENV] = {name: NOT_SEEN if name in last.masked else value for name, value in last.env.items()}
    if job.commit:
        inputs[COMMIT] = {"commit": job.commit[:7]}
    if job.digest:
        inputs[IMAGE] = {"image": f"{job.image.partition('@')[0]}@{job.digest}"}
    if job.packages:
        inputs[PACKAGES] = dict(sorted(job.packages.items()))
    if job.driver:
        inputs[DRIVER] = {"driver": job.driver}
    if job.gpu_models:
        inputs[GPUS] = _counted(job.gpu_models)
    if job.runner_name:
        inputs[HOST] = {"host": job.runner_name}
    seconds = {"whole run": job.ended - job.started} if job.started and job.ended else {}
    return RunSide(
        id=log.name,
        status=log.triage.verdict,
        started_at=_iso(job.started),
        head=job.commit,
        image=f"{job.image.partition('@')[0]}@{job.digest}" if job.image and job.digest else "",
        inputs=inputs,
        triage=log.triage,
        seconds=seconds,
        partial=frozenset((COMMIT, PACKAGES)),
    )


def _packages(record: RunRecord) -> tuple[Mapping[str, str], Mapping[str, DirectUrl]]:
    """Those of the test's interpreter, else of the first container that told them."""
    around = record.environment
    known = [(each.packages, each.direct) for each in around.containers]
    return next((each for each in [(around.packages, around.direct), *known] if each[0]), ({}, {}))


def _version(
    name: str, packages: Mapping[str, str], direct: Mapping[str, DirectUrl], watched: Mapping[str, str]
) -> str:
    """`0.5.3 (git 1a2b3c4)`: a package from a work tree has one version for many commits."""
    commit = watched.get(name.replace("-", "_").lower(), "") or (direct[name].commit_id or "" if name in direct else "")
    return f"{packages[name]} (git {commit[:7]})" if commit else packages[name]


def _own(value: str, record: RunRecord, plan: Plan | None) -> str:
    """A value without what is this run's alone."""
    checkout = record.checkout
    own = [(record.id, "RUN"), (record.id.rpartition(".")[0], "RUN")]
    own += [(plan.workspace, "WORKSPACE")] if plan is not None else []
    commits = (checkout.commit, checkout.head) if checkout else ()
    own += [(commit[:length], "COMMIT") for commit in commits for length in (40, 7)]
    for text, name in own:
        value = value.replace(text, name) if text else value
    return value


def _seconds(record: RunRecord, phases: Mapping[str, float]) -> dict[str, float]:
    timings = record.timings
    seconds = {"whole run": timings.seconds, "waiting for GPUs": timings.queued}
    return {**{name: value for name, value in seconds.items() if value is not None}, **phases}


def _phases(run: RunDir) -> dict[str, float]:
    """Seconds of each step of the job."""
    events = sorted(events_of(run), key=lambda event: event.t)
    seconds: dict[str, float] = {}
    for at, event in enumerate(events):
        if event.event == "step" and event.name:
            end = next((later.t for later in events[at + 1 :] if later.event in ("step", "ended")), None)
            if end is not None:
                name = f"step {event.name}"
                seconds[name] = seconds.get(name, 0.0) + end - event.t
    return seconds


def _memory(record: RunRecord) -> dict[str, float]:
    used = record.gpu_use.gpus if record.gpu_use else ()
    memory = {f"GPU {peaks.gpu}, peak": float(peaks.used) for peaks in used if peaks.used is not None}
    ranks = record.probe.memory if record.probe else ()
    return {
        **memory,
        **{f"rank {each.rank}, reserved": each.reserved / 2**20 for each in ranks if each.rank is not None},
    }


def _number(value: float | str) -> float | None:
    """`nan` and `inf` stand as text in a record; a record from elsewhere may hold any text."""
    try:
        return float(value)
    except ValueError:
        return None


def _counted(names: Iterable[str]) -> dict[str, str]:
    return {name: str(count) for name, count in Counter(names).items()}


def _plan(run: RunDir) -> Plan | None:
    """None of a run that another client began: what its host claims has no environment."""
    try:
        return read_plan(run) if os.path.exists(run.plan) else None
    except (OSError, RecordError):
        return None


def _revisions(pieces: Iterable[bytes]) -> dict[str, str]:
    """Models and data sets whose revision the log names. What is cut by the end of a piece is not seen."""
    found: dict[str, str] = {}
    for piece in pieces:
        for kind, name, commit in _REVISION.findall(piece):
            found[f"{kind.decode()[:-1]} {name.decode().replace('--', '/')}"] = commit.decode()
    return found


def _iso(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat() if seconds else ""
