"""The story of `setup`: find what the CPU labels need on this machine, ask, try it with some rows, write it down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, Override
from ci_tasks.errors import UnknownName, UsageError, counted
from ci_tasks.features.setup import users_file
from ci_tasks.features.setup.package_index import TIMEOUT, IndexFinding, find_indexes, mirrors
from ci_tasks.hosts.executors import LocalExecutor
from ci_tasks.planning.actions import version_matches
from ci_tasks.planning.pip_commands import entry, install_commands, mending_override, merged
from ci_tasks.planning.planner import wanted_python
from ci_tasks.planning.steps import plan_steps
from ci_tasks.planning.tested_files import only_defines_tests
from ci_tasks.records import BLOCKED, CANCELLED, EXIT_CODES, RunRecord, overall
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.events import EventStream
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.run.hosts_files import open_config, shown, users_hosts
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.run.results_table import print_results
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow.model import Job, Row

_TRIES = 3  # of the install steps: each failure may show what the next one needs
# What a venv takes with torch's wheels of this kind, and how long the steps take on a usual connection.
_COSTS = {"cuda": "6 to 9 GB and 10 to 30", "cpu": "1 to 2 GB and 3 to 10", "": "1 GB and 1 to 5"}

Confirm = Callable[[str], bool]  # whether the person agrees; raises UsageError without a person


@dataclass(frozen=True)
class FoundPython:
    """The interpreter for the version that CI `wanted`."""

    wanted: str
    path: str
    version: str


@dataclass(frozen=True)
class SetupResult:
    """As `setup --json` prints it. `overrides` are entries of hosts.yaml, `file` is where they are written."""

    checkout: str
    label: str
    python: FoundPython
    overrides: list[str]
    file: str
    written: bool
    rows: list[dict[str, str]]
    gpu_host: list[str]
    exit_code: int


def set_up(
    repo: str | None, workflow: str | None, label: str | None, count: int, index: str | None, confirm: Confirm,
    events: EventStream | None = None,
) -> SetupResult:  # fmt: skip
    """Print what is found, tried and written. `count` rows are tried; `index` is asked before others."""
    source, config = open_source(repo, workflow=workflow), open_config(repo)
    print(source.headline, flush=True)
    by_label: dict[str, list[Row]] = {}
    for row in list_jobs(source):
        by_label.setdefault(row.label, []).append(row)
    labels = cpu_labels(source, by_label)
    label = _chosen(label, labels, source)
    rows, file = by_label[label], users_hosts()
    python, findings = _find(source, config, rows, index)
    torch = max((finding.torch for finding in findings), key=[*reversed(_COSTS)].index, default="")
    costs = f"about {_COSTS[torch]} minutes" if findings else "how much they download is not known"
    own = {override.step for override in config.overrides if override.job in (rows[0].job, label)}
    overrides = merged(each for finding in findings for each in finding.overrides if each.step not in own)
    records: Sequence[RunRecord] = []
    if confirm(f"CI's install steps of {label} run here: {costs}. What they need beside goes to {shown(file)}."):
        is_final = any(finding.problem for finding in findings)
        overrides, records = _try_rows(source, config, rows, overrides, count, events, tries=1 if is_final else _TRIES)
    installed = any(record.status not in (BLOCKED, CANCELLED) for record in records)
    status = overall([record.status for record in records]) if records else CANCELLED
    jobs = [source.workflow.jobs[by_label[name][0].job] for name in labels]
    entries = [entry(override) for override in _for_all(jobs, overrides)]
    written = False
    if installed:
        written = _write(file, entries, f"for {source.path.name}")
    elif status == BLOCKED:
        print("\nthe install steps need more than another index or version; nothing was written")
    gpu_host = _gpu_host([row for rows in by_label.values() for row in rows if row.gpus != 0 or row.image], config)
    print("\n".join(["", *gpu_host]) if gpu_host and status != CANCELLED else "")
    if installed:
        print(f"`ci-tasks run {label}` runs all {len(rows)} rows with the packages that are there now")
    tried = [{"row": record.row, "status": record.status, "reason": record.reason} for record in records]
    return SetupResult(
        str(source.path), label, python, entries, str(file), written, tried, gpu_host, EXIT_CODES[status]
    )


def cpu_labels(source: CheckoutSource, by_label: Mapping[str, Sequence[Row]]) -> list[str]:
    """Those that need neither GPUs nor a container, and install something; the one with the most rows first."""
    labels = [
        label
        for label, rows in by_label.items()
        if not any(row.gpus != 0 or row.image or row.dynamic for row in rows)
        and install_commands(source.workflow.jobs[rows[0].job])
    ]
    return sorted(labels, key=lambda label: -len(by_label[label]))


def _chosen(label: str | None, labels: Sequence[str], source: CheckoutSource) -> str:
    if not labels:
        hint = "`ci-tasks jobs` lists the labels, and `ci-tasks doctor` checks a host"
        raise UsageError(f"no label of {source.workflow.path} installs packages and needs no GPU", hint=hint)
    if label is not None and source.label_of(label) not in labels:
        raise UnknownName("label that needs no GPU", label, labels, where=source.workflow.path)
    return labels[0] if label is None else source.label_of(label)


def _find(
    source: CheckoutSource, config: Config, rows: Sequence[Row], index: str | None
) -> tuple[FoundPython, list[IndexFinding]]:
    """Ask this machine for what the label's install steps name, and print it."""
    row, executor = rows[0], LocalExecutor(config.host("local"))
    job, event = source.workflow.jobs[row.job], event_context(source)
    wanted = wanted_python(source.workflow, job, row, event, config.overrides)
    python = FoundPython(wanted, *executor.find_python(wanted))
    print(f"\nlabel {row.label}: {counted(len(rows), 'row')} without GPUs\n  Python: {python.version} ({python.path})")
    if wanted and not version_matches(wanted, python.version):
        print(f"    CI wants {wanted}: `uv python install {wanted}` or `pyenv install {wanted}` installs it")
    steps = plan_steps(job, workflow_rows.row_resolver(source.workflow, job, row, event), config.overrides).sources
    pip = executor.run_queries({"pip": [python.path, "-m", "pip", "config", "list"]}, TIMEOUT)["pip"]
    if pip.code != 0:
        print(f"  {python.path} has no pip to ask an index with; the install steps are tried as they are")
        return python, []
    indexes = [*([index] if index else []), *mirrors(pip.out)]
    findings = find_indexes(replace(job, steps=steps), indexes, python.path, executor.run_queries)
    for finding in findings:
        print(f"  {finding.step}: {finding.text}", flush=True)
    return python, findings


def _try_rows(
    source: CheckoutSource,
    config: Config,
    rows: Sequence[Row],
    overrides: Sequence[Override],
    count: int,
    events: EventStream | None,
    tries: int,
) -> tuple[list[Override], Sequence[RunRecord]]:
    """Run some rows with the overrides. What a failure of the install steps names is added for another try."""
    # Files that run nothing in CI either would show nothing of this machine.
    names = [row.row for row in rows if row.test is None or not _runs_nothing(source.path / row.test)]
    request = RunRequest(rows[0].label, rows=tuple(names or [row.row for row in rows])[:count])
    print("".join(f"  override: {entry(override)}\n" for override in overrides), flush=True)
    named = [replace(override, source="ci-tasks setup") for override in overrides]
    trial = replace(config, overrides=(*named, *config.overrides))
    result = execute_label(source, trial, request, ExecutionOptions(events=events))
    if result is None:
        return [*overrides], []
    print_results(result.records, result.logs, result.batch, result.host_gpus)
    if tries > 1 and result.records and all(record.status == BLOCKED for record in result.records):
        more = mending_override(result.records[0].reason, source.workflow.jobs[rows[0].job], config.overrides)
        if more and (again := merged([*overrides, more])) != [*overrides]:
            print("\nthe install steps failed; they are tried again with what may help:")
            return _try_rows(source, config, rows, again, count, events, tries - 1)
    return [*overrides], result.records


def _for_all(jobs: Sequence[Job], overrides: Sequence[Override]) -> list[Override]:
    """The overrides, also for the jobs that have the same steps."""
    scripts = {(job.id, step.name): step.run for job in jobs for step in job.steps}
    also = [
        replace(override, job=job.id)
        for job in jobs
        for override in overrides
        if job.id != override.job
        and scripts.get((job.id, override.step), job) == scripts.get((override.job, override.step))
    ]
    return [*overrides, *also]


def _runs_nothing(test: Path) -> bool:
    return not test.is_file() or only_defines_tests(test.read_text(encoding="utf-8", errors="replace"))


def _write(file: Path, entries: Sequence[str], why: str) -> bool:
    """Add the overrides to the user's file, or print them if they cannot be added. Returns whether it did."""
    if not entries:
        print("\nCI's install steps work here as they are: there is nothing to write")
        return False
    changed = users_file.with_overrides(file.read_text(encoding="utf-8") if file.exists() else "", entries, why)
    print(f"\n{users_file.block(entries, why)}", flush=True)
    if changed is None:
        print(f"{shown(file)} is not in a form that can be added to: paste these lines there")
        return False
    users_file.write(file, changed)
    print(f"added to {shown(file)}")
    return True


def _gpu_host(rows: Sequence[Row], config: Config) -> list[str]:
    """What a GPU host would add, and how to name one; nothing if all rows run here."""
    if not rows:
        return []
    counts = ", ".join(f"{label} {count}" for label, count in Counter(row.label for row in rows).items())
    gpus, images = sorted({row.gpus for row in rows if row.gpus}), {row.image for row in rows if row.image}
    needs = [f"up to {gpus[-1]} GPUs"] if gpus else []
    needs += [f"docker with {', '.join(sorted(images))}"] if images else []
    hosts = [name for name, spec in config.hosts.items() if spec.kind != "local"]
    example = ["hosts:", "  h100a: {kind: ssh, address: h100a.example.com}"]
    return [
        f"A GPU host would add {len(rows)} rows: {counts}. It needs {' and '.join(needs) or 'nothing more'}.",
        *([] if hosts else [f"Add it to {shown(users_hosts())}:", *example]),
        f"`ci-tasks doctor --host {[*hosts, 'h100a'][0]}` says what it lacks.",
    ]
