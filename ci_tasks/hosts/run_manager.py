"""Runs on a host: each is sent, watched, fetched and cleared away, whatever becomes of the link.

Every run has a thread that tells its whole story, `_follow`. The host owns the truth; what is here is its mirror.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ci_tasks import debug_log
from ci_tasks.agent.serving.bundle import MAX_SIZE, BundleError
from ci_tasks.agent.serving.messages import Cancel, Clear, Collect, Create, Receive, RunUpdate, StartRun, Watch
from ci_tasks.agent.trees.git import form_of
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts import py_spy
from ci_tasks.hosts import remote_run as runs
from ci_tasks.hosts.connection import (
    Channel,
    PendingRequest,
    ReconnectingConnection,
    RequestRefused,
    TakeLog,
    TakeUpdate,
)
from ci_tasks.hosts.remote_run import CLEARING, DONE, FETCHING, KILL, SENDING, WATCHING, CodePack, RemoteRun, RunMirror
from ci_tasks.hosts.transport import LinkDied
from ci_tasks.records import BLOCKED, CANCELLED, LOST

_POLL_INTERVAL_S = 0.05
_SEND_PY_SPY_AFTER_S = 60.0  # seconds from a run's start; see ci_tasks.hosts.py_spy
_CLOSE_TIMEOUT_S = 15.0  # seconds that what is left to be cleared away gets at the end
_IN_MEMORY = 1 << 22  # bytes of a bundle


class RemoteRunManager:
    """The runs of one command on one host. `connection` is made with functions that take its updates and logs."""

    def __init__(self, open_connection: Callable[[TakeUpdate, TakeLog], ReconnectingConnection]) -> None:
        self._runs: dict[int, RemoteRun] = {}
        self._cancelling = threading.Lock()  # a run is not cancelled while it is posted
        self._sending = threading.Lock()
        self.set_code_packs([])
        self._py_spy: threading.Thread | None = None
        # No Event: ^C in the middle of its wait can leave its lock held, or have it let go of twice.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.connection = open_connection(self._take_update, self._take_log)

    def set_code_packs(self, packs: list[CodePack]) -> None:
        """The code that runs need from now on. It goes once over each connection."""
        self._packs, self._unreported = packs, packs
        self._packs_on: Channel | None = None
        self._sends_everything = False  # the host does not have what we thought it had

    def start(self, remote_run: RemoteRun) -> None:
        """Send a run and start it there. Returns at once; `remote_run` says what becomes of it."""
        remote_run.key = len(self._runs) + 1
        self._runs[remote_run.key] = remote_run
        if not remote_run.is_here:
            remote_run.lock = remote_run.lock or runs.lock_mirror(remote_run.run)
        remote_run.mirror = (runs.RunHere if remote_run.is_here else RunMirror)(remote_run.run)
        name = f"ci-tasks run {remote_run.key}"
        remote_run.thread = threading.Thread(target=self._follow, args=(remote_run,), daemon=True, name=name)
        remote_run.thread.start()

    def attach(self, remote_run: RemoteRun) -> None:
        """Watch a run that was started earlier."""
        remote_run.phase = WATCHING
        self.start(remote_run)

    def cancel(self, remote_run: RemoteRun, how: str) -> None:
        """Ask for the run's end: CANCEL, or KILL, which waits for nothing. The host hears of it when it can; a second
        KILL waits for the host no more."""
        again = how == KILL and remote_run.cancel_requested == KILL
        with self._cancelling:
            remote_run.cancel_requested = how
            if remote_run.phase == SENDING and not remote_run.sent_on and remote_run.aborted is None:
                self._abort(remote_run, CANCELLED, "cancelled", is_over=True)
        if how == KILL and not remote_run.is_here and (again or not self.connection.is_up):
            self._abandon(remote_run)

    def wait(self, seconds: float) -> None:
        """Until something is heard of the runs, at most so long."""
        with suppress(queue.Empty):
            self._wakeups.get(timeout=seconds)

    def detach(self) -> None:
        """Stop watching; the runs go on."""
        if any(not run.is_here for run in self._runs.values()):
            self._send_py_spy()
            until = time.monotonic() + _CLOSE_TIMEOUT_S
            while self._py_spy and self._py_spy.is_alive() and self.connection.is_up and time.monotonic() < until:
                self._py_spy.join(_POLL_INTERVAL_S)
        for remote_run in self._runs.values():
            remote_run.detached = True
        self._finish(lambda remote_run: True)

    def close(self) -> None:
        """Let what is being ended or cleared away come to its end, then hang up."""
        self._finish(lambda remote_run: remote_run.phase == CLEARING or bool(remote_run.cancel_requested))
        name = self.connection.spec.name
        for remote_run in self._runs.values():
            if remote_run.phase == CLEARING:
                left = f"{remote_run.directory} is still on {name}, which did not answer"
                print(f"ci-tasks: {left}; `ci-tasks clean --host {name}` removes it", file=sys.stderr, flush=True)
        self.connection.close()
        for remote_run in self._runs.values():
            if remote_run.mirror is not None:
                remote_run.mirror.close()
            if remote_run.lock is not None:
                remote_run.lock.release()
                remote_run.lock = None

    def _finish(self, concerned: Callable[[RemoteRun], bool]) -> None:
        """Wait for threads, for a while. Only what is to be cleared away waits for a new link, too."""
        until = time.monotonic() + _CLOSE_TIMEOUT_S
        for remote_run in self._runs.values():
            thread = remote_run.thread
            while thread and thread.is_alive() and remote_run.aborted is None and concerned(remote_run):
                waits_for_link = remote_run.phase == CLEARING and remote_run.cancel_requested != KILL
                if time.monotonic() > until or not (self.connection.is_up or waits_for_link):
                    return
                thread.join(_POLL_INTERVAL_S)

    def _send_py_spy(self) -> None:
        """Once, and beside all else."""

        def send() -> None:
            with debug_log.ignored("sending py-spy"):
                py_spy.send(self.connection)

        if self._py_spy is None and not py_spy.was_sent(self.connection):
            self._py_spy = threading.Thread(target=send, daemon=True, name="ci-tasks py-spy")
            self._py_spy.start()

    # -- the story of one run -----------------------------------------------------------------------------------------

    def _follow(self, remote_run: RemoteRun) -> None:
        while remote_run.phase != DONE and remote_run.aborted is None:
            try:
                channel = self.connection.channel()
                try:
                    self._advance(remote_run, channel)
                except RequestRefused as refusal:
                    self._refused(remote_run, channel, refusal)
            except LinkDied:
                if remote_run.cancel_requested == KILL:
                    self._abandon(remote_run)
            except CiTasksError as problem:
                self._stop(remote_run, problem.message)
            except OSError as error:
                self._stop(remote_run, f"cannot write {remote_run.run.path}: {error.strerror}", BLOCKED)
            except Exception as bug:
                self._stop(remote_run, f"{remote_run.run.path}: {debug_log.bug('following a run', bug)}")
        self._wake()

    def _advance(self, remote_run: RemoteRun, channel: Channel) -> None:
        if remote_run.phase == SENDING:
            self._send(remote_run, channel)
        elif remote_run.phase == WATCHING:
            self._post_watch(remote_run, channel).wait()
        if remote_run.phase == WATCHING and self._has_ended(remote_run, channel):
            remote_run.phase = FETCHING
        if remote_run.phase == FETCHING:
            self._fetch(remote_run, channel)
        if remote_run.phase == CLEARING:
            if not remote_run.keep_remote and not (remote_run.mirror and remote_run.mirror.status.kept):
                self._clear(remote_run, channel)
            remote_run.phase = DONE

    def _send(self, remote_run: RemoteRun, channel: Channel) -> None:
        """Code, run and start all at once, without waiting for a response in between. The host has started the run when
        this returns, unless it was cancelled. One that may have begun is sent again all the same, to be cancelled."""
        directory, parts = remote_run.directory, tuple(remote_run.parts)
        requests = []
        with self._sending:
            if parts and self._packs_on is not channel:
                for pack in self._packs:
                    known = () if self._sends_everything else pack.known_trees
                    requests.append(channel.post(Receive(form_of(pack.tree)), pack=pack.build(known)))
                self._packs_on = channel
            with self._cancelling:
                if remote_run.cancel_requested and not remote_run.sent_on:
                    self._abort(remote_run, CANCELLED, "cancelled", is_over=True)
                if remote_run.aborted is not None:
                    return
                remote_run.sent_on.append(channel)
            if not remote_run.is_here:
                requests.append(channel.post(Create(directory, remote_run.plan, remote_run.script, parts)))
            requests.append(channel.post(StartRun(directory, remote_run.secrets, remote_run.sbatch_script, parts)))
            requests.append(self._post_watch(remote_run, channel))
        for pending in requests:  # the first refusal is the one that is raised
            pending.wait()
        remote_run.phase = WATCHING  # from here on it runs, whatever else goes wrong
        with self._sending:
            unreported, self._unreported = self._unreported, []
        for pack in unreported if self._packs_on is channel else ():
            pack.mark_sent()

    def _post_watch(self, remote_run: RemoteRun, channel: Channel) -> PendingRequest:
        assert remote_run.mirror is not None
        return channel.post(Watch(remote_run.directory, remote_run.key, remote_run.mirror.offset))

    def _has_ended(self, remote_run: RemoteRun, channel: Channel) -> bool:
        """Wait until the run is over (true), or is to go on without us. Raises LinkDied."""
        assert remote_run.mirror is not None
        runs.update_location(remote_run.run, clock_ahead=self.connection.clock_ahead)
        cancel_sent, send_py_spy_at = "", time.monotonic() + _SEND_PY_SPY_AFTER_S
        while not remote_run.mirror.ended.wait(_POLL_INTERVAL_S):
            if channel.died.is_set():
                raise LinkDied(channel.reason)
            if remote_run.cancel_requested != cancel_sent:
                cancel_sent = remote_run.cancel_requested
                channel.post(Cancel(remote_run.directory, kill=cancel_sent == KILL))
            if not remote_run.is_here and time.monotonic() > send_py_spy_at:
                self._send_py_spy()
                send_py_spy_at = float("inf")
            if remote_run.detached:
                remote_run.phase = DONE
            if remote_run.phase == DONE or remote_run.aborted is not None:
                return False
        return True

    def _fetch(self, remote_run: RemoteRun, channel: Channel) -> None:
        mirror, name = remote_run.mirror, self.connection.spec.name
        assert mirror is not None
        if isinstance(mirror, RunMirror) and not mirror.error:
            if mirror.is_complete():
                self._collect(remote_run, channel, mirror)
            elif remote_run.refetched:
                mirror.fail(f"the log here is not the one on {name}, though it was fetched twice")
            else:
                remote_run.refetched, remote_run.phase = True, WATCHING
                mirror.restart_log()
                return
        elif mirror.gone:
            channel.post(Cancel(remote_run.directory)).wait()  # ends what its agent has left
        if mirror.error:
            self._abort(remote_run, BLOCKED, f"{mirror.error}; the run is kept on {name}")
            return
        if isinstance(mirror, RunMirror):
            mirror.finish()
        remote_run.phase = CLEARING
        self._wake()

    def _collect(self, remote_run: RemoteRun, channel: Channel, mirror: RunMirror) -> None:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=remote_run.run.path) as spool:

            def keep(chunk: bytes) -> None:
                if spool.tell() + len(chunk) > MAX_SIZE:
                    mirror.fail(f"artifacts of more than {MAX_SIZE >> 30} GiB")
                elif not mirror.error:
                    self._tell(remote_run, lambda: spool.write(chunk))

            channel.post(Collect(remote_run.directory, remote_run.secrets), keep).wait()
            spool.seek(0)
            try:
                if not mirror.error:
                    mirror.unpack_artifacts(spool)
            except BundleError as problem:
                mirror.fail(f"{self.connection.spec.name} sent artifacts that no host of ci-tasks sends: {problem}")

    def _clear(self, remote_run: RemoteRun, channel: Channel) -> None:
        if not remote_run.is_here:
            channel.post(Clear(remote_run.directory, shared=not remote_run.keep_shared_files)).wait()

    # -- runs that cannot go on ---------------------------------------------------------------------------------------

    def _refused(self, remote_run: RemoteRun, channel: Channel, refusal: RequestRefused) -> None:
        was_sending, why = remote_run.phase == SENDING, refusal.message
        if refusal.code == "missing-base" and was_sending and not remote_run.code_resent:
            with self._sending:
                remote_run.code_resent = self._sends_everything  # by another run of ours
                if not self._sends_everything:
                    self._sends_everything, self._packs_on = True, None
        elif refusal.code == "elsewhere":
            self.connection.cache.clear_facts()
            self._stop(remote_run, why, BLOCKED if was_sending else LOST)
        elif was_sending:
            self._clear(remote_run, channel)  # half of it may be there
            self._abort(remote_run, BLOCKED, why, is_over=True)
        elif remote_run.phase == WATCHING and refusal.code == "missing":
            if remote_run.mirror is None or not remote_run.mirror.status.exists:
                why = f"it never began on {self.connection.spec.name}: the command that sent it went away before"
                if not remote_run.keep_remote:
                    self._clear(remote_run, channel)
            self._abort(remote_run, LOST, why, is_over=True)
        else:
            self._stop(remote_run, why)

    def _stop(self, remote_run: RemoteRun, why: str, status: str = "") -> None:
        """What cannot go on. A run that is fetched stays so, and of one that was never asked for nothing is lost."""
        if remote_run.phase == CLEARING:
            remote_run.warning, remote_run.phase = f"could not be cleared away: {why}", DONE
        else:
            self._abort(remote_run, status or (LOST if remote_run.may_have_begun else BLOCKED), why)

    def _abandon(self, remote_run: RemoteRun) -> None:
        """A person leaves, and the host does not hear of it."""
        name = self.connection.spec.name
        if remote_run.is_fetched:
            remote_run.phase = DONE
        elif remote_run.aborted is None:
            why = f"left while {name} did not answer; `ci-tasks cancel` ends it when {name} can be reached"
            if remote_run.phase == FETCHING:
                why = f"left before all of it was here; `ci-tasks fetch` brings it from {name}"
            self._abort(remote_run, LOST, why)

    def _abort(self, remote_run: RemoteRun, status: str, reason: str, *, is_over: bool = False) -> None:
        """`is_over`: nothing of it is to be fetched later."""
        if is_over:
            with suppress(OSError):
                runs.update_location(remote_run.run, complete=True)
        remote_run.aborted = (status, reason)
        self._wake()

    def _wake(self) -> None:
        """`wait` returns; one word is enough, however much is heard meanwhile."""
        if self._wakeups.empty():
            self._wakeups.put(None)

    # -- in the connection's thread: what cannot be taken ends its own run only ---------------------------------------

    def _take_update(self, update: RunUpdate) -> None:
        remote_run = self._runs.get(update.key)
        if remote_run is not None and (mirror := remote_run.mirror) is not None:
            self._tell(remote_run, lambda: mirror.update_status(update))

    def _take_log(self, key: int, offset: int, chunk: bytes) -> None:
        remote_run = self._runs.get(key)
        if remote_run is not None and (mirror := remote_run.mirror) is not None:
            self._tell(remote_run, lambda: mirror.write_log(offset, chunk))

    def _tell(self, remote_run: RemoteRun, tell: Callable[[], object]) -> None:
        assert remote_run.mirror is not None
        try:
            tell()
        except OSError as error:  # a full disk
            remote_run.mirror.fail(f"cannot write {remote_run.run.path}: {error.strerror}")
        except Exception as error:  # what no host of ours sends
            debug_log.LOGGER.error("what came of %s", remote_run.run.path, exc_info=error)
            remote_run.mirror.fail(f"cannot take what came: {error!r}")
        self._wake()
