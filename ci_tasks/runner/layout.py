"""The run directory: every file name in it and every key of its status, once.

The writer on the host, the client that looks, and the report all import these names, so they cannot disagree.
Standard library only, Python 3.8+: this package is zipped and runs on hosts that have nothing else of ours.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Dict

STATE_RUNNING = "running"
STATE_ENDED = "ended"

# How a run ended, as the runner saw it. What that means (passed, vacuous, blocked) is for the judge to say.
END_EXIT = "exit"
END_TIMEOUT = "timeout"
END_CANCELLED = "cancelled"
END_ERROR = "error"

# Marks every process of a run, so that those which left the process group are found again through /proc.
ENV_RUN_DIR = "CI_TASKS_RUN_DIR"


class RunDir:
    """Paths of one run directory; the same on the host and on the client."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.plan = self._at("plan.json")
        self.script = self._at("run.sh")
        self.bin = self._at("bin")
        self.adapter = self._at("bin", "docker")
        self.runner = self._at("bin", "runner.pyz")
        self.log = self._at("log")
        self.events = self._at("events.jsonl")
        self.status = self._at("status.json")
        self.docker = self._at("docker.json")
        self.remote = self._at("remote.json")
        self.environment = self._at("environment.json")
        self.record = self._at("record.json")
        self.artifacts = self._at("artifacts")
        self.junit = self._at("artifacts", "junit.xml")
        self.outputs = self._at("artifacts", "outputs")

    def _at(self, *parts: str) -> str:
        return os.path.join(self.path, *parts)


def mark(run_dir: str) -> str:
    """The value of ENV_RUN_DIR: the directory's own path, which run.sh exports too, whatever link it was reached by."""
    return os.path.realpath(run_dir)


def write_json(path: str, value: Any) -> None:
    """Replace `path` whole: a reader sees the old text or the new one, never half of either."""
    directory = os.path.dirname(path)
    handle, beside = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=directory)
    try:
        # A path that is no UTF-8 holds lone surrogates; their backslash form is just what JSON wants.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
            json.dump(value, out, indent=1, ensure_ascii=False)
            out.write("\n")
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def read_json(path: str) -> Dict[str, Any]:
    """The object in `path`, or an empty one where there is no such file yet."""
    try:
        with open(path, encoding="utf-8") as source:
            value = json.load(source)
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}
