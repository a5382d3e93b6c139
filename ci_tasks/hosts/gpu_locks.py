"""Which GPUs of a host are locked, and by which processes: a question, and a pure parser of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.agent.gpus import lock_files as locks
from ci_tasks.agent.records import PATTERN, QueryAnswer
from ci_tasks.hosts.queries import list_value, parse_json_object, python_query

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
LOCKS_QUERY_NAME = "gpu locks"
LOCKS_QUERY: Sequence[str] = python_query(_SCRIPT, PATTERN)


def lock_holders(answers: Mapping[str, QueryAnswer]) -> dict[int, list[int]]:
    """GPU id → the pids that hold its lock."""
    response = parse_json_object(answers[LOCKS_QUERY_NAME])
    holders: dict[int, list[int]] = {}
    for file in lock_files(response):
        for lock in locks.parse_locks(str(response.get("locks", ""))):
            if ([*lock.device], lock.inode) == (file["device"], file["inode"]):
                holders.setdefault(file["gpu"], []).append(lock.pid)
    return {gpu: sorted(set(holders[gpu])) for gpu in sorted(holders)}


def lock_files(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lock files that an answer names."""
    files = [file for file in list_value(response, "files") if isinstance(file, dict)]
    return [file for file in files if type(file.get("gpu")) is int and {"path", "device", "inode"} <= file.keys()]
