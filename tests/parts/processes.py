"""The processes of this machine that belong to a test, and files that come and go while they are looked for."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ci_tasks.agent import processes
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.run_directory import machine_environment


def with_variable(start: str, program: str = "") -> list[int]:
    """Those with an environment variable, `NAME=VALUE`, that begins so, which run `program` if one is given.

    A name alone is never enough to kill one: other tests run beside this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            runs_it = not program or (entry / "cmdline").read_bytes().startswith(program.encode() + b"\0")
            if runs_it and b"\0" + start.encode() in b"\0" + (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found


def command_lines(pids: list[int]) -> list[str]:
    """Their arguments, without those that have just ended."""
    lines = []
    for pid in pids:
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_text())
        except OSError:
            continue
    return lines


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def files_named(name: str, top: Path) -> list[Path]:
    """Those below `top`, whatever else is removed meanwhile; `Path.glob` raises then."""
    return [Path(above, name) for above, _, files in os.walk(top) if name in files]


def agent_words(python: str, agent: str, verb: str, run_dir: str) -> list[str]:
    """A command that starts or cancels a run by the agent in its directory, as a host's server does."""
    start = "from agent.__main__ import begin; sys.exit(begin(sys.argv[2], {}) or 0)"
    code = {"start": start, "cancel": "from agent.slurm import cancel; cancel(sys.argv[2])"}[verb]
    return [python, "-I", "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {code}", agent, run_dir]


class LocalQueryRunner:
    """See ci_tasks.hosts.queries.QueryRunner: this machine, without an agent."""

    def __init__(self, host_env: Mapping[str, str] | None = None) -> None:
        self._environ = machine_environment(host_env or {})

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return processes.ask(queries, timeout, self._environ)
