"""The agent as a client has brought it to this host, and how it starts there for a run.

A process loads it while the first run's code is on its way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Mapping, Optional

from ..archive import with_bytecode
from ..launcher import AgentLauncher
from ..run_directory import RunDir


class InstalledAgent:
    """`path` is agent.pyz on this host, and `code` the directory it was unpacked to."""

    def __init__(self, path: str, code: str) -> None:
        self.path, self.code = path, code
        with open(path, "rb") as source:
            self._sources = source.read()  # stays if somebody removes our files
        self._archive = b""
        self._archiving: Optional[threading.Thread] = None
        self._launcher: Optional[AgentLauncher] = None

    def prepare(self) -> None:
        """Do in the background what every run needs, unless that was done."""
        if self._archiving is not None:
            return
        self._archiving = threading.Thread(target=self._make_archive, daemon=True)
        self._archiving.start()
        with suppress(OSError):  # where there can be no process, the start of a run says so
            self._launcher = AgentLauncher(self.code)

    def archive(self) -> bytes:
        """agent.pyz with byte code, for a run's directory."""
        self.prepare()
        assert self._archiving is not None
        self._archiving.join()
        return self._archive

    def start(self, run: RunDir, secrets: Mapping[str, str]) -> str:
        """Start it for the run, with `secrets` on top of our environment. Returns why it did not start, or ""."""
        # Where somebody has removed it, what is imported later would be missing. A process that was just importing from
        # there makes the directory anew, for its byte code.
        if not os.path.exists(os.path.join(self.code, "__main__.py")):
            return _execute(run.agent, run, secrets)
        self.prepare()
        if self._launcher is None or not self._launcher.request(run, secrets):
            return _execute(self.code, run, secrets)
        return self._launcher.answer()

    def _make_archive(self) -> None:
        self._archive = with_bytecode(self._sources)


def _execute(code: str, run: RunDir, secrets: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", code, "start", run.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **secrets},
        start_new_session=True,
    )
    lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no error message"]
    return lines[-1] if done.returncode else ""
