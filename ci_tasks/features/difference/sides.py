"""A run, a record.json or a CI log → one side of a comparison: what was seen of its inputs and results.

An axis that was not noted is left out, so that it counts as not seen. Of the environment the variables of the plan are
read: those of the machine are none of the row's inputs. Paths and names that every run has of its own are replaced.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from datetime import datetime, timezone
from pathlib import Path

from ci_tasks.agent.codec import RecordError, from_json
from ci_tasks.agent.files import open_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError
from ci_tasks.features.difference.values import NOT_SEEN, Values, of_series, read_values
from ci_tasks.logs.job_log import from_file, open_text
from ci_tasks.logs.metrics import read_series
from ci_tasks.logs.reading import reading_of
from ci_tasks.records import RunRecord, Triage
from ci_tasks.registry import metric_formats
from ci_tasks.results import store
from ci_tasks.results.index import runs_of_row
from ci_tasks.results.load import find_one, load_record

COMMIT, IMAGE, PACKAGES, ENV, ARGUMENTS, MOUNTS = "commit", "image", "packages", "env", "arguments", "mounts"
DRIVER, GPUS, KERNEL, HOST, DEVIATIONS = "driver", "gpus", "kernel", "host", "deviations"
SUBMODULE, OVERLAY = "submodule:", "overlay:"  # followed by a path, or a name
SECONDS = "s"  # the end of the name of an amount of time
WHOLE_RUN = f"whole run, {SECONDS}"
_HASH = re.compile(r"[0-9a-f]{7,64}")
# Deviations that other axes tell better, and the container's name, which each run has its own of.
_COVERED = ("code", "Python packages", "GPUs", "pull request", "image", "name")
_MOST_PASSED = 50  # of a row, among which the last one before the run is searched for

Inputs = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class RunSide:
    """One side. `inputs` has what was seen of each axis, by name. `commit` and `image` are what `--rev` and `--image`
    take: a tree with uncommitted changes, `dirty`, is none, and has only the `head` that they are on top of.
    `repository` is the directory that has the commits. `amounts` are seconds and MiB, as their names say. `log` is the
    file that has its metrics, "" without one; `from_ci`: it is CI's, which shows some names of an axis only."""

    id: str
    label: str = ""
    row: str = ""
    host: str = ""
    status: str = ""
    started_at: str = ""
    head: str = ""
    dirty: tuple[str, ...] = ()
    image: str = ""
    repository: str = ""
    inputs: Inputs = field(default_factory=dict)
    triage: Triage | None = None
    reason: str = ""
    metrics: Values = field(default_factory=dict)
    amounts: Mapping[str, float] = field(default_factory=dict)
    log: str = ""
    from_ci: bool = False

    @property
    def commit(self) -> str:
        return "" if self.dirty else self.head


def two_sides(first: str, second: str | None) -> tuple[RunSide, RunSide]:
    """`first` is the earlier state if both are named. Alone it is the one that is asked about, and compared with the
    last run of its row that passed before it. A CI log has the other side's row. Raises UsageError, Blocked."""
    if second is None:
        new = one_side(first)
        old = _last_passed(new)
    else:
        old, new = one_side(first), one_side(second)
    place = new.repository or old.repository
    pairs = [
        replace(side, label=side.label or other.label, row=side.row or other.row, repository=place)
        for side, other in ((old, new), (new, old))
    ]
    return pairs[0], pairs[1]


def one_side(name: str) -> RunSide:
    """Raises UsageError, Blocked."""
    if not os.path.isfile(name):
        return _of_run(find_one(name)[1])
    with open(name, "rb") as opened:
        is_record = opened.read(1) == b"{"
    if not is_record:
        return _of_log(name)
    try:
        return _of_record(from_json(RunRecord, Path(name).read_bytes(), where=name), None)
    except RecordError as error:
        raise UsageError(str(error), hint="a run's record.json, or CI's log of a job") from None


def logged_values(side: RunSide) -> Values:
    """What its log prints of results; nothing if there is no log. Raises OSError."""
    if not side.log:
        return {}
    with open_text(side.log) if side.from_ci else open_file(side.log) as lines:
        return read_values(lines, metric_formats())


def _last_passed(run: RunSide) -> RunSide:
    """The newest run of its row that passed and began before it, on any host."""
    if not run.label:
        raise UsageError(
            f"{run.id} does not say which row it is of", hint="name the other run: `ci-tasks runs` lists them"
        )
    for directory in runs_of_row(run.label, run.row, _MOST_PASSED):
        record = load_record(directory)
        if record.id != run.id and (record.started_at or "") < (run.started_at or "~"):
            return _of_run(directory)
    raise UsageError(
        f"no run of {run.row} that passed before {run.id} is kept in {store.home() / 'runs'}",
        hint="name the other run, its record.json, or a log of CI",
    )


def _of_run(run: RunDir) -> RunSide:
    try:
        plan = read_plan(run) if os.path.exists(run.plan) else None
    except (OSError, RecordError):
        plan = None  # of a run that another client began: what its host claims has no environment
    metrics = of_series(reading_of(run.log).series) if os.path.exists(run.log) else {}
    return replace(_of_record(load_record(run), plan), metrics=metrics, log=run.log)


def _of_record(record: RunRecord, plan: Plan | None) -> RunSide:
    checkout, timings = record.checkout, record.timings
    head = checkout.head if checkout and not checkout.sample else ""
    amounts = {WHOLE_RUN: timings.seconds, f"waiting for GPUs, {SECONDS}": timings.queued}
    amounts |= {f"peak of GPU {peak.gpu}, MiB": peak.used for peak in (record.gpu_use.gpus if record.gpu_use else ())}
    return RunSide(
        id=record.id,
        label=record.label,
        row=record.row,
        host=record.host or "",
        status=record.status,
        started_at=record.started_at or "",
        head=head if _HASH.fullmatch(head) else "",  # a record of others may hold any text, and git gets this one
        dirty=checkout.dirty if checkout else (),
        image=record.environment.digest or "",
        repository=checkout.path if checkout else "",
        inputs=_inputs(record, plan),
        triage=record.triage,
        reason=record.reason,
        amounts={name: float(value) for name, value in amounts.items() if value is not None},
    )


def _inputs(record: RunRecord, plan: Plan | None) -> Inputs:
    around, checkout = record.environment, record.checkout
    inputs: dict[str, Mapping[str, str]] = {HOST: {"host": record.host or "local"}}
    if checkout is not None:
        inputs[COMMIT] = {"commit": checkout.title, "tree": (checkout.own_tree or checkout.tree)[:12]}
        for overlay in checkout.overlays:
            inputs[f"{OVERLAY}{overlay.name}"] = {"commit": overlay.title, "tree": overlay.tree[:12]}
    if image := around.digest or ("no container" if around.runtime == "none" else ""):
        inputs[IMAGE] = {"image": image}
    if packages := _packages(record):
        own = {name: _without_own(version, record, plan) for name, version in packages.items()}
        inputs[PACKAGES] = {"Python": around.python or NOT_SEEN, **own}
    if plan is not None:
        variables = {**plan.env, **plan.host_env}
        inputs[ENV] = {name: _without_own(value, record, plan) for name, value in variables.items()}
        inputs[ARGUMENTS] = {"test": plan.test or "none", "arguments": plan.args}
        inputs[MOUNTS] = plan.container.mounts if plan.container is not None else {}
    if around.gpus or not record.gpus:
        inputs[GPUS] = _counted([gpu.name for gpu in around.gpus]) or {"GPUs": "none"}
    inputs[DEVIATIONS] = {
        each.what: _without_own(each.here, record, plan) for each in record.deviations if each.what not in _COVERED
    }
    return {**inputs, **_machine(around.driver or "", around.kernel or "")}


def _packages(record: RunRecord) -> dict[str, str]:
    """Those of the test's interpreter: `0.5.3 (git 1a2b3c4)`, since a package from a work tree has one version for many
    commits."""
    around = record.environment
    packages = around.packages
    commits = {module.name.replace("_", "-"): module.commit for module in around.imported if module.commit}
    found = {}
    for name in sorted(packages, key=str.lower):
        commit = commits.get(name.replace("_", "-").lower()) or commits.get(name)
        found[name] = f"{packages[name]} (git {commit[:7]})" if commit else packages[name]
    return found


def _without_own(value: str, record: RunRecord, plan: Plan | None) -> str:
    """A value without what is this run's alone."""
    own = [(record.id, "RUN"), (record.id.rpartition(".")[0], "RUN"), (plan.workspace if plan else "", "WORKSPACE")]
    commits = (record.checkout.commit, record.checkout.head) if record.checkout else ()
    own += [(commit[:length], "COMMIT") for commit in commits for length in (40, 7)]
    for text, name in own:
        value = value.replace(text, name) if text else value
    return value


def _of_log(path: str) -> RunSide:
    """What CI's log shows of its job, which deviates from nothing."""
    log = from_file(path)
    with open_text(path) as lines:
        metrics = of_series(read_series(lines, metric_formats()))
    job, inputs = log.job, dict[str, Mapping[str, str]]({DEVIATIONS: {}})
    if job.scripts:
        last = job.scripts[-1]
        inputs[ENV] = {name: NOT_SEEN if name in last.masked else value for name, value in last.env.items()}
    image = f"{job.image.partition('@')[0]}@{job.digest}" if job.image and job.digest else ""
    for axis, values in (
        (COMMIT, {"commit": job.commit[:7]} if job.commit else {}),
        (IMAGE, {"image": image} if image else {}),
        (PACKAGES, dict(sorted(job.packages.items()))),
        (GPUS, _counted(job.gpu_models)),
        (HOST, {"host": job.runner_name} if job.runner_name else {}),
    ):
        if values:
            inputs[axis] = values
    began = datetime.fromtimestamp(job.started, timezone.utc).isoformat() if job.started else ""
    return RunSide(
        id=log.name,
        status=log.triage.verdict,
        started_at=began,
        head=job.commit,
        image=image,
        inputs={**inputs, **_machine(job.driver or "", "")},
        triage=log.triage,
        metrics=metrics,
        amounts={WHOLE_RUN: job.ended - job.started} if job.started and job.ended else {},
        log=path,
        from_ci=True,
    )


def _machine(driver: str, kernel: str) -> Inputs:
    return {axis: {axis: value} for axis, value in ((DRIVER, driver), (KERNEL, kernel)) if value}


def _counted(names: Iterable[str]) -> dict[str, str]:
    return {name: str(count) for name, count in Counter(names).items()}
