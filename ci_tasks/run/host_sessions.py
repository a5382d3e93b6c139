"""The hosts of one command: each is asked, made ready and looked at again in a thread of its own.

With one host a command does all that itself, before its rows: what is wrong there ends the command. Of several hosts
the ready ones begin, whatever the others do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from ci_tasks import debug_log
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.executor import Say
from ci_tasks.planning.placement import HostFacts, python_problem, requires_python
from ci_tasks.run.host_session import HostSession
from ci_tasks.run.row_plans import RowPlanner

_REFRESH_SECONDS = 20.0  # seconds between two looks at what others hold there
_QUERY_SECONDS = 20.0
_SHUTDOWN_SECONDS = 30.0  # seconds that the threads may take to let go of what they hold
_PREFETCHING, _INSTALLING = "prefetching", "install steps"


class HostSessions:
    """The threads of several hosts, until the block ends."""

    def __init__(self, sessions: Sequence[HostSession], planner: RowPlanner) -> None:
        self._sessions, self._planner = sessions, planner
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._over, self._abandoned = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(session,), daemon=True, name=f"ci-tasks {session.name}")
            for session in sessions
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._abandoned.set()
            until = time.monotonic() + _SHUTDOWN_SECONDS
            for thread, session in zip(self._threads, self._sessions, strict=True):
                holds = session.activity in (_PREFETCHING, _INSTALLING) and session.executor.is_up
                thread.join(max(0.0, until - time.monotonic()) if holds else 0.0)

    def abandon_setup(self) -> None:
        """Stop waiting for install steps: no row needs them now."""
        self._abandoned.set()

    def drain_messages(self) -> list[str]:
        """What a person should hear of the hosts since the last call."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def _serve(self, session: HostSession) -> None:
        """A host's whole story beside its rows."""
        try:
            facts = gather_facts(session, self._planner)
            if self._planner.request.prefetch:
                session.activity = _PREFETCHING
                session.row_problems = self._planner.before_rows(session, self._say(session), self._is_wanted)
            session.facts = facts
            self._refresh(session)
            session.activity = _INSTALLING
            setups = self._planner.setups(session)
            if why := session.executor.run_install_steps(setups, self._say(session), self._is_wanted):
                raise CiTasksError(self._planner.install_problem(why))
            session.is_ready, session.activity = True, ""
            while not self._over.wait(_REFRESH_SECONDS):
                self._refresh(session)
        except KeyboardInterrupt:
            session.unusable_reason = "cancelled"
        except (CiTasksError, OSError) as problem:
            session.unusable_reason = problem.message if isinstance(problem, CiTasksError) else str(problem)
        except Exception as bug:  # the others go on
            session.unusable_reason = debug_log.bug(f"host {session.name}", bug)

    def _refresh(self, session: HostSession) -> None:
        """What others hold there is a hint; a host that does not answer is heard of elsewhere."""
        from ci_tasks.hosts.queries import locked_gpus_and_images

        if session.executor.is_up and not session.executor.has_scheduler:
            images = dict.fromkeys(filter(None, map(self._planner.image_of, self._planner.rows)))
            with suppress(CiTasksError):
                found = locked_gpus_and_images(session.executor, session.spec, list(images))
                session.locked_gpus, session.images = found

    def _say(self, session: HostSession) -> Say:
        return lambda text: self._messages.put(f"{session.name}: {text}")

    def _is_wanted(self) -> bool:
        return not self._abandoned.is_set()


def gather_facts(session: HostSession, planner: RowPlanner) -> HostFacts:
    """What a host offers. Raises Blocked for one that cannot be reached, or has not the Python that CI asks for."""
    executor, spec, rows = session.executor, session.spec, planner.rows
    facts = executor.facts(
        gpus=max((row.needed_gpus for row in rows), default=0),
        container=any(row.image for row in rows),
        simulates=planner.simulates,
    )
    wanted = planner.python_version(rows[0]) if rows else ""
    _, version = executor.find_python(wanted)
    is_bare = spec.runtime == "none"
    # Else it is the image's. A login node's Python is not its nodes'.
    if executor.has_scheduler or not (wanted or spec.simulate or is_bare):
        return facts
    requirement = requires_python(planner.code.read_file)
    if requirement and is_bare and not (wanted or spec.simulate):
        command = ["python3", "-c", "import platform; print(platform.python_version())"]
        answer = executor.run_queries({"python": command}, _QUERY_SECONDS).get("python")
        version = answer.out.strip() if answer is not None and answer.code == 0 else ""
    return replace(facts, python_problem=python_problem(requirement, version))
