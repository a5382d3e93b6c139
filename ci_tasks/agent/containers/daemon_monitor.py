"""Asks the container daemon every few seconds whether it answers, beside the `docker run` that waits for it.

A daemon that hangs ends nothing and prints nothing. There is one query at a time, and each is killed after its timeout.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from ..records import Plan
from .run_containers import RUNTIMES, DockerClient, environment

QUERY_SECONDS = 15.0  # a daemon that is busy with a pull may take several
PAUSE_SECONDS = 5.0  # between an answer and the next query
# It lists no more than one: only whether there is an answer counts.
DAEMON_QUERY = ("ps", "--quiet", "--last", "1")


class DaemonMonitor:
    """Does nothing for a plan without docker or podman. `on_first_answer` is called once, in the monitor's thread."""

    def __init__(self, plan: Plan, on_first_answer: Callable[[], object]) -> None:
        self.runtime = plan.container_runtime if plan.image else None
        self._client = DockerClient(self.runtime or "", environment(plan))
        self._on_first_answer = on_first_answer
        self._unanswered_since: Optional[float] = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="container daemon", daemon=True)

    @property
    def silent_seconds(self) -> float:
        """For how long there has been no answer; 0 as long as no query has timed out."""
        since = self._unanswered_since
        return time.monotonic() - since if since is not None else 0.0

    def start(self) -> None:
        if self.runtime in RUNTIMES:
            self._thread.start()

    def close(self) -> None:
        """Does not wait for the thread."""
        self._stopped.set()
        self._client.abort()

    def _run(self) -> None:
        has_answered = False
        while not self._stopped.is_set():
            asked_at = time.monotonic()
            answer = self._client.run(*DAEMON_QUERY, timeout=QUERY_SECONDS)
            if answer.timed_out:
                self._unanswered_since = self._unanswered_since or asked_at
                continue
            if answer.code is None or answer.code >= 0:  # else it was killed, which says nothing
                self._unanswered_since = None  # an error is an answer, too
            if answer.code == 0 and not has_answered:
                has_answered = True
                self._on_first_answer()
            self._stopped.wait(PAUSE_SECONDS)
