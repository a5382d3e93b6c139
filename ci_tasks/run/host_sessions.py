"""The hosts of one command: each is asked, made ready and kept an eye on in a thread of its own.

With one host a command does all that itself, before its rows: what is wrong there ends the command. Of several hosts
the ready ones begin, whatever the others do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from ci_tasks import debug_log
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.executor import CodeSnapshot, Executor, Say
from ci_tasks.planning.placement import HostFacts, missing_resources, python_problem, requires_python
from ci_tasks.report.live import HostProgress
from ci_tasks.workflow.model import Row

if TYPE_CHECKING:
    from ci_tasks.planning.planner import SharedSetup

_REFRESH_SECONDS = 20.0  # seconds between two looks at what others hold there
_QUERY_SECONDS = 20.0
_SHUTDOWN_SECONDS = 30.0  # seconds that the threads may take to let go of what they hold


@dataclass
class HostSession:
    """A host that takes part. `facts` are None until it has answered; `problem` says why nothing can run there;
    `note` what it does before its rows begin; `without` which rows lack a download there, and why; `speed` how fast
    rows are there, 1 as elsewhere. `first_rows` says of the first two rows that ended there whether no test was seen.
    A host that `is_dropped` gets no rows while another one can run them. `away_since`: it is being prepared or
    reconnected. While it `holds` something for its rows, such as their venv, its thread is waited for."""

    executor: Executor
    code: CodeSnapshot
    facts: HostFacts | None = None
    unusable_reason: str = ""
    activity: str = "connecting"
    is_ready: bool = False
    holds_resources: bool = False
    locked_gpus: frozenset[int] = frozenset()
    images: frozenset[str] = frozenset()
    row_problems: Mapping[str, str] = field(default_factory=dict)
    first_rows: tuple[bool, ...] = ()
    is_dropped: bool = False
    away_since: float | None = None
    _missing: dict[tuple[int, bool], tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        return self.spec.name

    @property
    def spec(self) -> HostSpec:
        return self.executor.spec

    @property
    def is_known(self) -> bool:
        """Whether it is known what can run there."""
        return self.facts is not None or bool(self.unusable_reason)

    @property
    def is_away(self) -> bool:
        """Whether rows may wait for it to be ready, or to be reachable again."""
        return not self.unusable_reason and not (self.is_ready and self.executor.is_up)

    def give_up_if_away(self) -> bool:
        """Whether the host has been away for so long that no row waits for it any longer; then it is unusable."""
        self.away_since = (self.away_since or time.monotonic()) if self.is_away else None
        minutes = self.spec.give_up_minutes
        if self.away_since is None or time.monotonic() - self.away_since <= 60 * minutes:
            return False
        what = "not reachable" if self.is_ready else f"not ready ({self.activity})"
        self.unusable_reason = f"{what} for {minutes:g} min; --give-up MINUTES waits longer"
        return True

    def missing_for(self, row: Row) -> tuple[str, ...]:
        """What keeps `row` from running there, as far as is known."""
        if self.unusable_reason or self.facts is None:
            return (self.unusable_reason,) if self.unusable_reason else ()
        wants = (row.needed_gpus, bool(row.image))
        if wants not in self._missing:
            self._missing[wants] = tuple(missing_resources(row, self.spec, self.facts))
        return (*self._missing[wants], *((self.row_problems[row.row],) if row.row in self.row_problems else ()))

    def progress(self, ours: int) -> HostProgress:
        """How it stands, for a person; `ours` are the GPUs that our rows have there."""
        is_away = bool(self.unusable_reason) or (self.is_ready and not self.executor.is_up)
        gpus = None if self.facts is None or self.executor.has_scheduler else self.facts.gpus
        note = self.unusable_reason or self.activity or ("the link is down" if is_away else "")
        return HostProgress(self.name, gpus, max(0, len(self.locked_gpus) - ours), not is_away, note)


@dataclass(frozen=True)
class HostRequirements:
    """What the rows of a command want of a host: see Site.facts. `setups` are the install steps that they share there,
    `images` what they run in, each with the names of its rows. `before_rows` is what features do first; it says which
    rows would lack something. `install_problem` says what would help install steps that failed."""

    gpus: int
    container: bool
    simulates: bool
    python: str
    images: Mapping[str, tuple[str, ...]]
    setups: Callable[[HostSession], Sequence[SharedSetup]]
    before_rows: Callable[[HostSession, Say, Callable[[], bool]], Mapping[str, str]] | None = None
    install_problem: Callable[[str], str] = str


class HostSessions:
    """The threads of several hosts, until the block ends."""

    def __init__(self, sessions: Sequence[HostSession], needs: HostRequirements) -> None:
        self.sessions = sessions
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._requirements = needs
        self._over, self._abandoned = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(session,), daemon=True, name=f"ci-tasks {session.name}")
            for session in sessions
        ]

    def __enter__(self) -> HostSessions:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._abandoned.set()
        until = time.monotonic() + _SHUTDOWN_SECONDS
        for thread, session in zip(self._threads, self.sessions, strict=True):
            worth = session.holds_resources and session.executor.is_up
            thread.join(max(0.0, until - time.monotonic()) if worth else 0.0)

    def abandon_setup(self) -> None:
        """Nobody waits for install steps any more."""
        self._abandoned.set()

    def drain_messages(self) -> list[str]:
        """What a person should hear of the hosts since the last call."""
        lines = []
        while not self._messages.empty():
            lines.append(self._messages.get())
        return lines

    def _serve(self, session: HostSession) -> None:
        """A host's whole story beside its rows."""
        try:
            facts = gather_facts(session, self._requirements)
            self._before_rows(session)
            session.facts = facts
            self._refresh(session)
            self._pull(session)
            session.activity, session.holds_resources = "install steps", True
            setups = self._requirements.setups(session)
            if why := session.executor.run_install_steps(setups, self._message_sink(session), self._is_wanted):
                raise CiTasksError(self._requirements.install_problem(why))
            session.is_ready, session.activity = True, ""
            while not self._over.wait(_REFRESH_SECONDS):
                self._refresh(session)
        except KeyboardInterrupt:
            session.unusable_reason = "cancelled"
        except CiTasksError as problem:
            self._mark_unusable(session, problem.message)
        except OSError as error:
            self._mark_unusable(session, str(error))
        except Exception as bug:  # the others go on
            self._mark_unusable(session, debug_log.bug(f"host {session.name}", bug))

    def _before_rows(self, session: HostSession) -> None:
        if self._requirements.before_rows:
            session.activity, session.holds_resources = "prefetching", True
            session.row_problems = self._requirements.before_rows(session, self._message_sink(session), self._is_wanted)
            session.holds_resources = False

    def _pull(self, session: HostSession) -> None:
        """The images that the host lacks, once for all rows. Rows whose image cannot be had need not go there."""
        from ci_tasks.hosts.provision import can_pull, pull_images

        absent = [image for image in self._requirements.images if image not in session.images]
        if not absent or session.executor.has_scheduler or not can_pull(session.spec):
            return
        say = self._message_sink(session)

        def note(text: str) -> None:
            session.activity = text

        note(f"pulling {', '.join(absent)}")
        say(session.activity)
        answers = pull_images(session.executor, session.spec, absent, note, say)
        refused = {image: answer.last_line for image, answer in answers.items() if answer.code != 0}
        lost = {
            row: f"image {image}: {error}"
            for image, error in refused.items()
            for row in self._requirements.images[image]
        }
        session.row_problems = {**session.row_problems, **lost}
        session.images |= {image for image in answers if image not in refused}

    def _mark_unusable(self, session: HostSession, why: str) -> None:
        session.unusable_reason = why
        if not self._abandoned.is_set():
            self._messages.put(f"{session.name} is not used: {why}")

    def _refresh(self, session: HostSession) -> None:
        """What others hold there is a hint; a host that does not answer is heard of elsewhere."""
        if not session.executor.is_up:
            return
        with suppress(CiTasksError):
            session.locked_gpus, session.images = query_inventory(session, list(self._requirements.images))

    def _message_sink(self, session: HostSession) -> Callable[[str], None]:
        return lambda text: self._messages.put(f"{session.name}: {text}")

    def _is_wanted(self) -> bool:
        return not self._abandoned.is_set()


def gather_facts(session: HostSession, needs: HostRequirements) -> HostFacts:
    """What a host offers. Raises Blocked for one that cannot be reached, or has not the Python that CI asks for."""
    facts = session.executor.facts(gpus=needs.gpus, container=needs.container, simulates=needs.simulates)
    _, version = session.executor.find_python(needs.python)
    is_bare = session.spec.runtime == "none"
    # Else it is the image's. A login node's Python is not its nodes'.
    if session.executor.has_scheduler or not (needs.python or session.spec.simulate or is_bare):
        return facts
    requirement = requires_python(session.code.read_file)
    if requirement and is_bare and not (needs.python or session.spec.simulate):
        version = _python_on_path(session.executor)
    return replace(facts, python_problem=python_problem(requirement, version))


def _python_on_path(executor: Executor) -> str:
    """The version of the `python3` that rows get where there are no containers; empty where it does not say."""
    command = ["python3", "-c", "import platform; print(platform.python_version())"]
    answer = executor.run_queries({"python": command}, _QUERY_SECONDS).get("python")
    return answer.out.strip() if answer is not None and answer.code == 0 else ""


def query_inventory(session: HostSession, images: Sequence[str]) -> tuple[frozenset[int], frozenset[str]]:
    """The GPUs that are locked just now, and the images that the host has; a host with a scheduler is not asked."""
    from ci_tasks.hosts.queries import locked_gpus_and_images

    if session.executor.has_scheduler:
        return frozenset(), frozenset()
    return locked_gpus_and_images(session.executor, session.spec, images)
