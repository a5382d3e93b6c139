"""The table that ends a run, and its rows together. Apart from `label`, so that a retry need not load that."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ci_tasks.agent.records import Deviation
from ci_tasks.agent.run_directory import RunDir, read_remote, read_status_if_readable
from ci_tasks.errors import counted
from ci_tasks.records import CANCELLED, EXIT_CODES, PLANNED, RUNNING, BatchResult, RunRecord, overall
from ci_tasks.report import results
from ci_tasks.results import store
from ci_tasks.results.load import load_record
from ci_tasks.safe_output import terminal_width


def print_results(
    records: list[RunRecord],
    logs: Sequence[str],
    name: str,
    gpus_by_host: Mapping[str, int] | None = None,
    also: Sequence[str] = (),
    *,
    all_deviations: bool = False,
) -> BatchResult:
    """Print the table that ends a run, then what is `also` to be said. What differs from CI as in the label's last run
    is only counted, unless `all_deviations` are to be shown."""
    batches = list(dict.fromkeys(store.batch_of(record.id) for record in records))
    known = set() if all_deviations else _known_deviations(batches)
    command = f"ci-tasks report {','.join(batches)} --deviations"
    counts = any(record.gpus for record in records) or len(gpus_by_host or {}) > 1
    width = terminal_width()
    times = results.summary_lines(records, gpus_by_host or {}) if counts else []
    deviations = results.deviations(records, width, known, command)
    lines = ["", *results.table(records, logs, width), "", *deviations, "", *times, *([""] if times else []), *also]
    print("\n".join(lines))
    print(f"{name}: {results.summary(records)}", flush=True)
    return batch_result(name, records, logs)


def _known_deviations(batches: Sequence[str]) -> set[Deviation]:
    """What differed from CI in the label's run before the first of these."""
    first = min(batches, default="")
    label = first[len("20260101-120000") :]
    earlier = [name for name in store.batches() if name < first and name[len("20260101-120000") :] == label]
    rows = [load_record(run) for _, run in store.rows_of(max(earlier))] if earlier else []
    return {deviation for record in rows if record.started_at for deviation in record.deviations}


def kept_lines(records: Sequence[RunRecord], logs: Sequence[str]) -> list[str]:
    """What a person may do with the rows that `--keep` kept."""
    runs = [(record.id, RunDir(os.path.dirname(log))) for record, log in zip(records, logs, strict=True) if log]
    kept = [(id, run) for id, run in runs if read_status_if_readable(run).kept is not None]
    if not kept:
        return []
    id, remote = kept[0][0], read_remote(kept[0][1])
    lines = [f"kept: {counted(len(kept), 'row')}; `ci-tasks shell {id}` opens bash there"]
    if remote is None or remote.kind != "slurm":
        lines.append(f"after an edit, `ci-tasks retry {id}` runs the failed step again")
    return lines


def batch_result(name: str, records: Sequence[RunRecord], logs: Sequence[str]) -> BatchResult:
    """The rows together; `logs` are in the order of `records`."""
    directories = {record.id: os.path.dirname(log) for record, log in zip(records, logs, strict=True) if log}
    if any(record.status in (RUNNING, PLANNED) for record in records):
        return BatchResult(name, RUNNING, None, tuple(records), directories)
    status = overall(statuses(records))
    return BatchResult(name, status, EXIT_CODES[status], tuple(records), directories)


def statuses(records: Sequence[RunRecord]) -> list[str]:
    """The statuses that count for the whole: a row that was ended for another's failure says nothing of its own."""
    counted = [record.counted_status for record in records if not (record.stopped and record.status == CANCELLED)]
    return counted or [record.status for record in records]
