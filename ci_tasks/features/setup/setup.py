"""The story of `setup`.

find      the CPU labels, the Python that CI names, an index that has its packages    _find, package_index.py
try       CI's install steps and some rows, with the overrides that they need         _try_rows
write     those overrides, to the user's hosts.yaml                                   _write, users_file.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, Override
from ci_tasks.errors import UnknownName, UsageError, counted
from ci_tasks.features.setup import package_index, users_file
from ci_tasks.features.setup.gpu_host import gpu_host_lines
from ci_tasks.features.setup.package_index import Ask, IndexFinding
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
from ci_tasks.run.label import LabelResult, execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.run.results_table import print_results
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow.model import Job, Row

_TRIES = 3  # of the install steps: each failure may show what the next one needs
_HOST = "local"


@dataclass(frozen=True)
class SetupRequest:
    repo: str | None
    workflow: str | None = None
    label: str | None = None
    rows: int = 5
    index: str | None = None
    yes: bool = False


@dataclass(frozen=True)
class FoundPython:
    """The interpreter for the version that CI `wanted`."""

    wanted: str
    path: str
    version: str

    @property
    def text(self) -> str:
        if not self.wanted or version_matches(self.wanted, self.version):
            return f"{self.path} ({self.version})"
        how = f"`uv python install {self.wanted}` or `pyenv install {self.wanted}`"
        return f"no {self.wanted} here, {self.version} is used ({self.path}); {how} installs it"


@dataclass(frozen=True)
class Findings:
    """What a label's install steps need on this machine."""

    label: str
    rows: tuple[Row, ...]
    python: FoundPython
    indexes: tuple[IndexFinding, ...]
    overrides: tuple[Override, ...]


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


def set_up(request: SetupRequest, *, may_ask: bool, events: EventStream | None = None) -> SetupResult:
    """Print what is found, tried and written. `may_ask`: a person is there to answer."""
    source, config = open_source(request.repo, workflow=request.workflow), open_config(request.repo)
    print(source.headline, flush=True)
    by_label = _rows_by_label(source)
    labels = _cpu_labels(source, by_label)
    label = _chosen(request.label, labels, source)
    executor = LocalExecutor(config.host(_HOST))
    ask = package_index.remembered(executor.run_queries)
    found = {name: _find(source, config, by_label[name], request.index, executor, ask) for name in labels}
    tried = found[label]
    overrides, result = _try_rows(source, config, tried, request.rows, events)
    records = result.records if result else []
    installed = any(record.status not in (BLOCKED, CANCELLED) for record in records)
    status = overall([record.status for record in records])
    others = [override for name, other in found.items() if name != label for override in other.overrides]
    written = False
    if installed:
        written = _write([*overrides, *others], f"for {source.path.name}", may_ask=may_ask, yes=request.yes)
    elif records and status == BLOCKED:
        print("\nthe install steps need more than another index or version; nothing was written")
    gpu_rows = [row for rows in by_label.values() for row in rows if row.gpus != 0 or row.image]
    hosts = [name for name, spec in config.hosts.items() if spec.kind != "local"]
    gpu_host = gpu_host_lines(gpu_rows, source.workflow.jobs, shown(users_hosts()), hosts)
    if gpu_host and status != CANCELLED:
        print("\n".join(["", *gpu_host]))
    if installed:
        print(f"\n`ci-tasks run {label}` runs all {len(tried.rows)} rows with the packages that are there now")
    return SetupResult(
        checkout=str(source.path),
        label=label,
        python=tried.python,
        overrides=[entry(override) for override in [*overrides, *others]],
        file=str(users_hosts()),
        written=written,
        rows=[{"row": record.row, "status": record.status, "reason": record.reason} for record in records],
        gpu_host=gpu_host,
        exit_code=EXIT_CODES[status],
    )


# find


def _rows_by_label(source: CheckoutSource) -> dict[str, list[Row]]:
    by_label: dict[str, list[Row]] = {}
    for row in list_jobs(source):
        by_label.setdefault(row.label, []).append(row)
    return by_label


def _cpu_labels(source: CheckoutSource, by_label: Mapping[str, Sequence[Row]]) -> list[str]:
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
        raise UsageError(
            f"no label of {source.workflow.path} installs packages and needs no GPU",
            hint="`ci-tasks jobs` lists the labels, and `ci-tasks doctor` checks a host",
        )
    if label is None:
        return labels[0]
    if source.label_of(label) not in labels:
        raise UnknownName("label that needs no GPU", label, labels, where=source.workflow.path)
    return source.label_of(label)


def _find(
    source: CheckoutSource, config: Config, rows: Sequence[Row], index: str | None, executor: LocalExecutor, ask: Ask
) -> Findings:
    """Ask this machine for what the label's install steps name, and print it."""
    row = rows[0]
    job, event = source.workflow.jobs[row.job], event_context(source)
    wanted = wanted_python(source.workflow, job, row, event, config.overrides)
    path, version = executor.find_python(wanted)
    python = FoundPython(wanted, path, version)
    count = counted(len(rows), "row")
    print(f"\nlabel {row.label}: {count} without GPUs\n  Python: {python.text}", flush=True)
    steps = plan_steps(job, workflow_rows.row_resolver(source.workflow, job, row, event), config.overrides).sources
    findings = _indexes(replace(job, steps=steps), path, index, ask)
    for finding in findings:
        print(f"  {finding.step}: {finding.problem or finding.text}", flush=True)
    own = {override.step: override for override in config.overrides if override.job in (job.id, row.label)}
    for step in {finding.step for finding in findings if finding.overrides} & own.keys():
        print(f"  {step}: {own[step].source} has an override, which is tried as it is")
    needed = [override for override in package_index.overrides_of(findings) if override.step not in own]
    return Findings(row.label, tuple(rows), python, tuple(findings), tuple(needed))


def _indexes(job: Job, python: str, index: str | None, ask: Ask) -> list[IndexFinding]:
    if not package_index.pip_works(python, ask):
        print(f"  {python} has no pip to ask an index with; the install steps are tried as they are")
        return []
    indexes = [*([index] if index else []), *package_index.mirrors(python, ask)]
    return package_index.find_indexes(job, indexes, python, ask)


# try


def _try_rows(
    source: CheckoutSource, config: Config, found: Findings, count: int, events: EventStream | None
) -> tuple[list[Override], LabelResult | None]:
    """Run some rows with the overrides. Those that a failure of the install steps names are added for another try."""
    overrides = list(found.overrides)
    job = source.workflow.jobs[found.rows[0].job]
    request = RunRequest(found.label, rows=tuple(_rows_to_try(source, found.rows, count)))
    for number in range(1, _TRIES + 1):
        for override in overrides:
            print(f"  override: {entry(override)}")
        print("", flush=True)
        named = [replace(override, source="ci-tasks setup") for override in overrides]
        trial = replace(config, overrides=(*named, *config.overrides))
        result = execute_label(source, trial, request, ExecutionOptions(events=events))
        if result is None:
            return overrides, None
        print_results(result.records, result.logs, result.batch, result.host_gpus)
        no_index = any(finding.problem for finding in found.indexes)
        more = None if no_index else _mending(result.records, job, config.overrides)
        if more is None or number == _TRIES or (again := merged([*overrides, more])) == overrides:
            return overrides, result
        overrides = again
        print("\nthe install steps failed; they are tried again with what would mend them:")
    raise AssertionError("the last try returns")


def _rows_to_try(source: CheckoutSource, rows: Sequence[Row], count: int) -> list[str]:
    """The first ones, without those whose file runs nothing in CI either: they would show nothing of this machine."""
    names = [row.row for row in rows if row.test is None or not _runs_nothing(source.path / row.test)]
    return (names or [row.row for row in rows])[:count]


def _runs_nothing(test: Path) -> bool:
    return not test.is_file() or only_defines_tests(test.read_text(encoding="utf-8", errors="replace"))


def _mending(records: Sequence[RunRecord], job: Job, own: Sequence[Override]) -> Override | None:
    if any(record.status != BLOCKED for record in records):
        return None
    return mending_override(records[0].reason, job, own) if records else None


# write


def _write(overrides: Sequence[Override], why: str, *, may_ask: bool, yes: bool) -> bool:
    """Add the overrides to the user's file, or print them where they cannot be added. Returns whether it did."""
    if not overrides:
        print("\nCI's install steps work here as they are: there is nothing to write")
        return False
    entries, file = [entry(override) for override in overrides], users_hosts()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    changed = users_file.with_overrides(text, entries, why)
    where = shown(file)
    print(f"\n{users_file.block(entries, why)}", flush=True)
    if changed is None:
        print(f"{where} is not in a form that can be added to: paste these lines there")
        return False
    if not yes and not may_ask:
        print(f"not written: `--yes` adds these lines to {where}")
        return False
    if not yes and input(f"add these lines to {where}? [Y/n] ").strip().lower() not in ("", "y", "yes"):
        print(f"not written; {where} is where they belong")
        return False
    _replace(file, changed)
    print(f"added to {where}")
    return True


def _replace(file: Path, text: str) -> None:
    """The file appears whole, with the mode that it had; of a link, what it leads to."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if file.exists():
            beside.chmod(file.stat().st_mode)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
