"""Starts agents from a process that has loaded their code and becomes each run's by forking: to start Python and to
import is most of what an agent's start takes.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import suppress
from typing import Mapping, Optional

from .run_directory import RunDir

ANSWER_SECONDS = 60.0  # twice what an agent is given to start


class AgentLauncher:
    """The process, and what is said to it: a run at a time."""

    def __init__(self, code: str) -> None:
        """`code` is the agent that it loads: agent.pyz, or a directory with the same. Raises OSError."""
        # In a session of its own: what ends a connection's processes, or ^C, must not end one that is starting a run.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", code, "launch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._answer: Optional[str] = None

    def request(self, run: RunDir, secrets: Mapping[str, str]) -> bool:
        """Ask it to start the run's agent, with `secrets` on top of our environment. False where it has died: then it
        does not start this one."""
        assert self._process.stdin
        self._answer = None
        request = json.dumps({"run_dir": run.path, "secrets": dict(secrets)})
        try:
            self._process.stdin.write(request.encode("ascii") + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def answer(self) -> str:
        """Why the run that was asked for last did not start, or "". It can be asked again after a KeyboardInterrupt."""
        if self._answer is None:
            self._answer = self._read_answer()
        return self._answer

    def _read_answer(self) -> str:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            self._process.kill()
            return "the process that starts agents has not answered for %g s" % ANSWER_SECONDS
        try:
            return str(json.loads(self._process.stdout.readline())["problem"])
        except ValueError:
            return "the process that starts agents has died"

    def close(self) -> None:
        """End it; the agents that it started go on."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # a request that it did not take
                stream.close()  # type: ignore[union-attr]
