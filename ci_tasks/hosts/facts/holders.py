"""Who holds a host's GPUs: processes with memory on them, and locks with or without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci_tasks.hosts.facts.fact import Answers, Fact, ago, listed, loaded, python, unknown
from ci_tasks.hosts.facts.gpus import found
from ci_tasks.plan.machinery import LOCK_PATTERN, LOCKED_GPUS
from ci_tasks.report.doctor import FAULT, OK, WARNING, Finding
from ci_tasks.runner.gpu import gpus, locks

MEMORY, LOCKS = "GPU memory", "GPU locks"
# Looks only: taking a lock for a moment to see whether it is free would make a contender believe that it is not.
_SCRIPT = """
import json, os, re, sys
directory, pattern = os.path.split(sys.argv[1])
files = []
for name in sorted(os.listdir(directory)):
    found = re.match(pattern.replace("{gpu_id}", "([0-9]+)") + "$", name)
    if found:
        path = os.path.join(directory, name)
        at = os.stat(path)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            problem = ""
        except OSError as error:
            problem = error.strerror
        device = [os.major(at.st_dev), os.minor(at.st_dev)]
        files.append({"gpu": int(found.group(1)), "path": path, "device": device, "inode": at.st_ino,
                      "owner": at.st_uid, "problem": problem})
try:
    protected = open("/proc/sys/fs/protected_regular").read().strip()
except OSError:
    protected = "0"
above = os.stat(directory)
print(json.dumps({"files": files, "locks": open("/proc/locks").read(), "protected": protected, "user": os.geteuid(),
                  "directory": [above.st_mode, above.st_uid]}))
"""
APPS_QUESTION, LOCKS_QUESTION, PROCESSES = "gpu processes", "gpu locks", "processes"
FIRST: dict[str, Sequence[str]] = {
    APPS_QUESTION: gpus.QUERY_APPS,
    LOCKS_QUESTION: python(_SCRIPT, LOCK_PATTERN),
}


@dataclass(frozen=True)
class Process:
    user: str
    seconds: int
    name: str


def facts(answers: Answers) -> list[Fact]:
    """Asks about the processes that the answers to FIRST name."""
    pids = sorted({app.pid for app in gpus.parse_apps(answers[APPS_QUESTION].out)} | set(_pids(held(answers))))
    questions = dict(FIRST)
    if pids:
        # Not `args`: a command line may have a secret in it.
        which = ",".join(str(pid) for pid in pids)
        questions[PROCESSES] = ["ps", "-o", "pid=,user:32=,etimes=,comm=", "-p", which]
    return [Fact(questions, _read)]


def parse_processes(text: str) -> dict[int, Process]:
    """Lines of `ps -o pid=,user:32=,etimes=,comm=`; a name may have spaces."""
    rows = [line.split(None, 3) for line in text.splitlines()]
    return {
        int(pid): Process(user, int(seconds), name.strip())
        for pid, user, seconds, name in (row for row in rows if len(row) == 4)
        if pid.isdigit() and seconds.isdigit()
    }


def _read(answers: Answers) -> list[Finding]:
    asked = answers.get(PROCESSES)
    known = parse_processes(asked.out) if asked is not None else {}
    return [*_memory(answers, known), *_locks(answers, known)]


def _memory(answers: Answers, known: Mapping[int, Process]) -> list[Finding]:
    apps = tuple(gpus.parse_apps(answers[APPS_QUESTION].out))
    in_use = gpus.busy(tuple(found(answers)), apps)
    locked = held(answers)
    said = []
    for gpu, words in in_use.items():
        users = sorted({known[pid].user for pid in _words_pids(words) if pid in known})
        text = f"GPU {gpu}: {words}" + (f" of {', '.join(users)}" if users else "")
        if gpu in locked:
            said.append(Finding(MEMORY, OK, f"{text}, with its lock held"))
        else:
            step = f"rows here wait for it; ask {' and '.join(users) or 'whoever runs it'}, or end it"
            said.append(Finding(MEMORY, WARNING, f"{text}, without a lock", step))
    return said or [Finding(MEMORY, OK, "nobody uses a GPU")]


def _locks(answers: Answers, known: Mapping[int, Process]) -> list[Finding]:
    looked = loaded(answers[LOCKS_QUESTION])
    if not looked:
        return unknown(LOCKS, answers[LOCKS_QUESTION])
    by_holder: dict[tuple[int, ...], list[int]] = {}
    for gpu, pids in held(answers).items():
        by_holder.setdefault(tuple(pids), []).append(gpu)
    said = [Finding(LOCKS, OK, f"{_gpus(on)}: held by {_people(pids, known)}") for pids, on in by_holder.items()]
    said += [_unopened(file) for file in _files(looked) if file["problem"]]
    said += _protected(looked, {*range(LOCKED_GPUS), *(gpu.index for gpu in found(answers))})
    return said or [Finding(LOCKS, OK, "none is held")]


def _unopened(file: Mapping[str, Any]) -> Finding:
    path = file["path"]
    return Finding(
        LOCKS, FAULT, f"{path}: {file['problem']}; reading is all that a lock needs", f"sudo chmod a+r {path}"
    )


def _protected(looked: Mapping[str, Any], wanted: Iterable[int]) -> list[Finding]:
    """Lock files that root's containers could not open, those that are there and those that would be made."""
    mode, owner = [*listed(looked, "directory"), 0, 0][:2]
    directory = os.stat_result((mode, 0, 0, 0, owner, 0, 0, 0, 0, 0))
    protected = str(looked.get("protected"))
    files = _files(looked)
    foreign = [file["path"] for file in files if locks.harms_others(directory, file["owner"], protected)]
    said = []
    if foreign:
        text = f"{', '.join(foreign)}: made by a user, so root's containers cannot open it (fs.protected_regular)"
        said.append(Finding(LOCKS, WARNING, text, f"sudo chown root {' '.join(foreign)}"))
    missing = sorted({*wanted} - {file["gpu"] for file in files})
    if missing and locks.harms_others(directory, looked.get("user", 0), protected):
        text = f"no lock file for {_gpus(missing)}, and one made by you would lock out root (fs.protected_regular)"
        ids = " ".join(str(gpu) for gpu in missing)
        path = LOCK_PATTERN.format(gpu_id="$i")
        step = f"after each boot: for i in {ids}; do sudo install -m 666 /dev/null {path}; done"
        said.append(Finding(LOCKS, FAULT, text, step))
    return said


def held(answers: Answers) -> dict[int, list[int]]:
    """GPU id → the pids that hold its lock."""
    looked = loaded(answers[LOCKS_QUESTION])
    known = locks.parse_locks(str(looked.get("locks", "")))
    by_file = {
        file["gpu"]: sorted(
            {lock.pid for lock in known if [*lock.device] == file["device"] and lock.inode == file["inode"]}
        )
        for file in _files(looked)
    }
    return {gpu: pids for gpu, pids in sorted(by_file.items()) if pids}


def _files(looked: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [file for file in listed(looked, "files") if isinstance(file, dict)]


def _pids(held: Mapping[int, Sequence[int]]) -> Iterable[int]:
    return (pid for pids in held.values() for pid in pids if pid > 0)


def _words_pids(words: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", words)]


def _people(pids: Sequence[int], known: Mapping[int, Process]) -> str:
    return " and ".join(_person(pid, known.get(pid)) for pid in pids)


def _person(pid: int, process: Process | None) -> str:
    if process is None:
        return f"pid {pid}, which is not to be seen from here" if pid > 0 else "a process of another container"
    return f"pid {pid} ({process.name}) of {process.user}, for {ago(process.seconds)}"


def _gpus(ids: Sequence[int]) -> str:
    return f"GPU{'' if len(ids) == 1 else 's'} {', '.join(str(gpu) for gpu in ids)}"
