"""Beside a failure: whether rows fail more often on its GPUs, or its host, than elsewhere, and the run that would show
that they are not to blame."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from ci_tasks.errors import Blocked
from ci_tasks.records import BLOCKED, FAILED, RunRecord
from ci_tasks.results.machines import MachineRun, Suspect, explain, suspects

SINCE_SECONDS = 90 * 86400.0  # what was long ago may have been repaired
_GPU_FAULT = "gpu_hardware"  # the cause of a triage
_REPETITIONS = 8


def machine_notes(records: Sequence[RunRecord]) -> dict[str, str]:
    """The id of a run → a sentence about its machine; nothing for one whose machine is not worse than its peers."""
    failed = [record for record in records if record.gpus and _is_failure(record)]
    runs = recent_machine_runs() if failed else []
    named = suspects(runs) if runs else []
    notes = {}
    for record in failed:
        suspect = next((one for one in named if _was_on(record, one)), None)
        if suspect is not None:
            why = explain(suspect, (record.label, record.row), runs)
            notes[record.id] = f"{why}; {_exonerating_run(record, suspect, runs)}"
    return notes


def recent_machine_runs() -> list[MachineRun]:
    """What the history knows of the last weeks; nothing where there is no history."""
    try:
        from ci_tasks.results.history.queries import machine_runs
        from ci_tasks.results.history.run_row import RunQuery
    except Blocked:  # a Python that was built without SQLite
        return []
    return machine_runs(RunQuery(since=time.time() - SINCE_SECONDS))


def _is_failure(record: RunRecord) -> bool:
    return record.status == FAILED or (record.status == BLOCKED and record.cause == _GPU_FAULT)


def _was_on(record: RunRecord, suspect: Suspect) -> bool:
    for attempt in record.attempts[-1:]:
        host = attempt.host or "local"
        if suspect.machine == (f"{host}/{attempt.node}" if attempt.node else host):
            return not suspect.gpus or bool(set(suspect.gpus) & set(attempt.gpu_uuids))
    return False


def _exonerating_run(record: RunRecord, suspect: Suspect, runs: Sequence[MachineRun]) -> str:
    """The row on the same code elsewhere: if it fails there too, the machine is not to blame."""
    row = (record.label, record.row)
    others = [run for run in sorted(runs, key=lambda run: run.at) if run.row == row and run.machine != suspect.machine]
    passed = [run.machine.partition("/")[0] for run in others if not run.failed]
    words = f"{shlex.quote(record.label)} --only {shlex.quote(record.row)}"
    if passed:
        command = f"ci-tasks remote --host {shlex.quote(passed[-1])} {words}"
    else:
        host = shlex.quote(record.host or "local")
        command = f"ci-tasks remote --host {host} {words} --repeat {_REPETITIONS}"
    return f"if it fails elsewhere too, that is not the reason: `{command}`"
