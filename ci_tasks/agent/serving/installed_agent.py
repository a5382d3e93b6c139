"""The agent as a client has brought it to this host, and how it starts there for a run.

To start Python and to import is most of what an agent's start takes. So while the first run's code is on its way, a
process loads the agent, and becomes each run's by forking.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Mapping, Optional

from ..archive import with_bytecode
from ..run_directory import RunDir

ANSWER_SECONDS = 60.0  # twice what an agent is given to start


class InstalledAgent:
    """`path` is agent.pyz on this host, and `code` the directory it was unpacked to."""

    def __init__(self, path: str, code: str) -> None:
        self.path, self.code = path, code
        with open(path, "rb") as source:
            self._sources = source.read()  # stays if somebody removes our files
        self._archive = b""
        self._archiving: Optional[threading.Thread] = None
        self._launcher: Optional[subprocess.Popen[bytes]] = None

    def prepare(self) -> None:
        """Do in the background what every run needs, unless that was done."""
        if self._archiving is not None:
            return
        self._archiving = threading.Thread(target=self._make_archive, daemon=True)
        self._archiving.start()
        with suppress(OSError):  # where there can be no process, the start of a run says so
            # In a session of its own: what ends a connection's processes must not end one that is starting a run.
            self._launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", self.code, "launch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

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
        if self._launcher is None:
            return _execute(self.code, run, secrets)
        assert self._launcher.stdin and self._launcher.stdout
        request = json.dumps({"run_dir": run.path, "secrets": dict(secrets)})
        try:
            self._launcher.stdin.write(request.encode("ascii") + b"\n")
            self._launcher.stdin.flush()
        except OSError:  # it has died, and has not started this one
            return _execute(self.code, run, secrets)
        if not select.select([self._launcher.stdout], [], [], ANSWER_SECONDS)[0]:
            self._launcher.kill()
            return "the process that starts agents has not answered for %g s" % ANSWER_SECONDS
        try:
            return str(json.loads(self._launcher.stdout.readline())["problem"])
        except ValueError:
            return "the process that starts agents has died"

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
