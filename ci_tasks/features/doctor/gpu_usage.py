"""Who holds a host's GPUs: processes with memory on them, and locks with or without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ci_tasks.agent.gpus import lock_files as locks
from ci_tasks.agent.gpus import nvidia_smi
from ci_tasks.agent.gpus.lock_files import numbered
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import PATTERN
from ci_tasks.features.doctor.check_results import CheckResult, fault, ok, warning
from ci_tasks.features.doctor.gpus import visible_gpus
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers, ago, unanswered
from ci_tasks.hosts import queries as asked
from ci_tasks.planning.containers import LOCKED_GPUS

MEMORY, LOCKS = "GPU memory", "GPU locks"
APPS_QUERY, PROCESSES = "gpu processes", "processes"
FIRST_QUERIES: dict[str, Sequence[str]] = {
    APPS_QUERY: nvidia_smi.QUERY_APPS,
    asked.LOCKS_QUERY_NAME: asked.LOCKS_QUERY,
}


@dataclass(frozen=True)
class HostProcess:
    user: str
    seconds: int
    name: str


def facts(answers: QueryAnswers) -> list[HostFact]:
    """Queries the processes that the answers to FIRST_QUERIES name."""
    pids = sorted(
        {app.pid for app in nvidia_smi.parse_apps(answers[APPS_QUERY].out)} | set(_pids(asked.lock_holders(answers)))
    )
    queries = dict(FIRST_QUERIES)
    if pids:
        # Not `args`: a command line may have a secret in it.
        which = ",".join(str(pid) for pid in pids)
        queries[PROCESSES] = ["ps", "-o", "pid=,user:32=,etimes=,comm=", "-p", which]
    return [HostFact(queries, _read)]


def parse_processes(text: str) -> dict[int, HostProcess]:
    """Lines of `ps -o pid=,user:32=,etimes=,comm=`; a name may have spaces."""
    rows = [line.split(None, 3) for line in text.splitlines()]
    return {
        int(pid): HostProcess(user, int(seconds), name.strip())
        for pid, user, seconds, name in (row for row in rows if len(row) == 4)
        if pid.isdigit() and seconds.isdigit()
    }


def _read(answers: QueryAnswers) -> list[CheckResult]:
    processes_answer = answers.get(PROCESSES)
    processes = parse_processes(processes_answer.out) if processes_answer is not None else {}
    return [*_memory(answers, processes), *_locks(answers, processes)]


def _memory(answers: QueryAnswers, processes: Mapping[int, HostProcess]) -> list[CheckResult]:
    apps = tuple(nvidia_smi.parse_apps(answers[APPS_QUERY].out))
    in_use = nvidia_smi.gpus_in_use(tuple(visible_gpus(answers)), apps)
    locked = asked.lock_holders(answers)
    results = []
    for gpu, usage in in_use.items():
        users = sorted({processes[pid].user for pid in _pids_in(usage) if pid in processes})
        text = f"GPU {gpu}: {usage}" + (f" of {', '.join(users)}" if users else "")
        if gpu in locked:
            results.append(ok(MEMORY, f"{text}, with its lock held"))
        else:
            step = f"rows here wait for it; ask {' and '.join(users) or 'whoever runs it'}, or end it"
            results.append(warning(MEMORY, f"{text}, without a lock", step))
    return results or [ok(MEMORY, "nobody uses a GPU")]


def _locks(answers: QueryAnswers, processes: Mapping[int, HostProcess]) -> list[CheckResult]:
    inspection = asked.parse_json_object(answers[asked.LOCKS_QUERY_NAME])
    if not inspection:
        return unanswered(LOCKS, answers[asked.LOCKS_QUERY_NAME])
    by_holder: dict[tuple[int, ...], list[int]] = {}
    for gpu, pids in asked.lock_holders(answers).items():
        by_holder.setdefault(tuple(pids), []).append(gpu)
    results = [
        ok(LOCKS, f"{numbered('GPU', on)}: held by {_holders(pids, processes)}") for pids, on in by_holder.items()
    ]
    results += [_unopened(file) for file in asked.lock_files(inspection) if file["problem"]]
    results += _protected(inspection, {*range(LOCKED_GPUS), *(gpu.index for gpu in visible_gpus(answers))})
    return results or [ok(LOCKS, "none is held")]


def _unopened(file: Mapping[str, Any]) -> CheckResult:
    path = file["path"]
    return fault(LOCKS, f"{path}: {file['problem']}; reading is all that a lock needs", f"sudo chmod a+r {path}")


def _protected(inspection: Mapping[str, Any], gpu_ids: Iterable[int]) -> list[CheckResult]:
    """Lock files that root's containers could not open, those that are there and those that would be made."""
    mode, owner = [*asked.list_value(inspection, "directory"), 0, 0][:2]
    directory = os.stat_result((mode, 0, 0, 0, owner, 0, 0, 0, 0, 0))
    protected = str(inspection.get("protected"))
    files = asked.lock_files(inspection)
    foreign = [file["path"] for file in files if locks.blocks_other_users(directory, file["owner"], protected)]
    results = []
    if foreign:
        text = f"{', '.join(foreign)}: made by a user, so root's containers cannot open it (fs.protected_regular)"
        results.append(warning(LOCKS, text, f"sudo chown root {' '.join(foreign)}"))
    missing = sorted({*gpu_ids} - {file["gpu"] for file in files})
    if missing and locks.blocks_other_users(directory, inspection.get("user", 0), protected):
        lacking = f"no lock file for {numbered('GPU', missing)}"
        text = f"{lacking}, and one made by you would lock out root (fs.protected_regular)"
        ids = " ".join(str(gpu) for gpu in missing)
        path = PATTERN.format(gpu_id="$i")
        step = f"after each boot: for i in {ids}; do sudo install -m 666 /dev/null {path}; done"
        results.append(fault(LOCKS, text, step))
    return results


def _pids(holders: Mapping[int, Sequence[int]]) -> Iterable[int]:
    return (pid for pids in holders.values() for pid in pids if pid > 0)


def _pids_in(usage: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d{1,9})", usage)]


def _holders(pids: Sequence[int], processes: Mapping[int, HostProcess]) -> str:
    return " and ".join(_holder(pid, processes.get(pid)) for pid in pids)


def _holder(pid: int, process: HostProcess | None) -> str:
    if process is None:
        return f"pid {pid}, which is not visible here" if pid > 0 else "a process of another container"
    return f"pid {pid} ({process.name}) of {process.user}, for {ago(process.seconds)}"
