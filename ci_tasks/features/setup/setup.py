"""The story of `setup`: ask, run CI's install steps and some rows here, and write the overrides that they needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, Override
from ci_tasks.errors import UnknownName, UsageError, counted
from ci_tasks.features.setup import users_file
from ci_tasks.features.setup.torch_wheels import CUDA, find_torch
from ci_tasks.hosts.executor import LocalExecutor
from ci_tasks.planning.actions import version_matches
from ci_tasks.planning.pip_commands import entry, install_commands, merged, suggested_override
from ci_tasks.planning.planner import wanted_python
from ci_tasks.planning.tested_files import only_defines_tests
from ci_tasks.records import BLOCKED, CANCELLED, EXIT_CODES, RunRecord, overall
from ci_tasks.resources import shown, users_hosts
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, event_context, open_source
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.run.hosts_files import open_config
from ci_tasks.run.label import execute_label
from ci_tasks.run.progress import print_results
from ci_tasks.workflow.model import Row

_TRIES = 3  # of the install steps: each failure may show what the next one needs
# What a venv takes with torch's wheels of this kind, and how long the steps take on a usual connection.
_COSTS = {"cuda": "6 to 9 GB and 10 to 30", "cpu": "1 to 2 GB and 3 to 10", "": "1 GB and 1 to 5"}

Confirm = Callable[[str], bool]  # whether the person agrees; raises UsageError without a person


@dataclass(frozen=True)
class SetupResult:
    """As `setup --json` prints it. `overrides` are entries of hosts.yaml, `file` is where they are written."""

    checkout: str
    label: str
    python: dict[str, str]
    overrides: list[str]
    file: str
    written: bool
    rows: list[dict[str, str]]
    exit_code: int


def set_up(
    repo: str | None, workflow: str | None, label: str | None, count: int, index: str | None, confirm: Confirm
) -> SetupResult:
    """Print what is found, tried and written. `count` rows are tried; `index` is used instead of CI's."""
    source, config, file = open_source(repo, workflow=workflow), open_config(repo), users_hosts()
    print(source.headline, flush=True)
    by_label: dict[str, list[Row]] = {}
    for row in list_jobs(source):
        by_label.setdefault(row.label, []).append(row)
    labels = cpu_labels(source, by_label)
    label = _chosen(label, labels, source)
    rows, executor = by_label[label], LocalExecutor(config.host("local"))
    job = source.workflow.jobs[rows[0].job]
    wanted = wanted_python(source.workflow, job, rows[0], event_context(source), config.overrides)
    path, version = executor.find_python(wanted)
    print(f"\nlabel {label}: {counted(len(rows), 'row')} without GPUs\n  Python: {version} ({path})")
    if wanted and not version_matches(wanted, version):
        print(f"    CI wants {wanted}: `uv python install {wanted}` or `pyenv install {wanted}` installs it")
    torch, of_torch = find_torch(job, index, path, executor.run_queries)
    own = {(override.job, override.step) for override in config.overrides}
    installs = dict.fromkeys(step for step, _ in install_commands(job)) if index else ()
    of_index = [Override(job.id, step, pip_index=index) for step in installs]
    overrides = merged(each for each in (*of_index, *of_torch) if (each.job, each.step) not in own)
    costs = f"about {_COSTS[torch]} minutes{', since only CUDA wheels of torch were found' if torch == CUDA else ''}"
    records: Sequence[RunRecord] = []
    if confirm(f"CI's install steps of {label} run here: {costs}. Overrides that they need go to {shown(file)}."):
        overrides, records = _try_rows(source, config, rows, overrides, count)
    installed = any(record.status not in (BLOCKED, CANCELLED) for record in records)
    status = overall([record.status for record in records]) if records else CANCELLED
    entries = [entry(override) for override in overrides]
    written = installed and users_file.add(file, entries, f"for {source.path.name}")
    if status == BLOCKED:
        print("\nthe install steps need more than another index or version; nothing was written")
    tried = [{"row": record.row, "status": record.status, "reason": record.reason} for record in records]
    python = {"wanted": wanted, "path": path, "version": version}
    return SetupResult(str(source.path), label, python, entries, str(file), written, tried, EXIT_CODES[status])


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
        raise UsageError(f"no label of {source.workflow.path} installs packages and needs no GPU")
    if label is not None and source.label_of(label) not in labels:
        raise UnknownName("label that needs no GPU", label, labels, where=source.workflow.path)
    return source.label_of(label or labels[0])


def _try_rows(
    source: CheckoutSource, config: Config, rows: Sequence[Row], overrides: list[Override], count: int
) -> tuple[list[Override], Sequence[RunRecord]]:
    """Run some rows with the overrides. What a failure of the install steps names is added for another try."""
    # Files that run nothing in CI either would show nothing of this machine.
    names = [row.row for row in rows if row.test is None or not _runs_nothing(source.path / row.test)]
    request = RunRequest(rows[0].label, rows=tuple(names or [row.row for row in rows])[:count])
    job = source.workflow.jobs[rows[0].job]
    for tries_left in reversed(range(_TRIES)):
        print("".join(f"  override: {entry(override)}\n" for override in overrides), flush=True)
        named = [replace(override, source="ci-tasks setup") for override in overrides]
        trial = replace(config, overrides=(*named, *config.overrides))
        result = execute_label(source, trial, request, ExecutionOptions())
        if result is None:
            break
        print_results(result.records, result.logs, result.batch, result.host_gpus)
        blocked = [record for record in result.records if record.status == BLOCKED]
        more = suggested_override(blocked[0].reason, job, config.overrides) if blocked and tries_left else None
        again = merged([*overrides, more]) if more else overrides
        if again == overrides:
            return overrides, result.records
        print("\nthe install steps failed; they are tried again with what may help:")
        overrides = again
    return overrides, []


def _runs_nothing(test: Path) -> bool:
    return not test.is_file() or only_defines_tests(test.read_text(encoding="utf-8", errors="replace"))
