"""Runs on a host over SSH: each is sent, watched, brought home and cleared away, whatever becomes of the link.

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
from ci_tasks.agent.serving.frames import FrameError
from ci_tasks.agent.serving.messages import Cancel, Clear, Collect, Done, RunUpdate
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.channel import Channel, PendingRequest, RequestRefused
from ci_tasks.hosts.mirror import RunHere, RunMirror, lock_mirror, mark_complete, record_clock
from ci_tasks.hosts.reconnecting import ReconnectingConnection
from ci_tasks.hosts.remote_run import (
    CLEARING,
    DONE,
    FETCHING,
    KILL,
    SENDING,
    WATCHING,
    CodePack,
    RemoteRun,
)
from ci_tasks.hosts.sender import RunSender, post_watch
from ci_tasks.hosts.transport import LinkDied
from ci_tasks.records import BLOCKED, CANCELLED, LOST

_POLL_INTERVAL_S = 0.05
_SEND_PY_SPY_AFTER_S = 60.0  # seconds from a run's start; see ci_tasks.hosts.py_spy
_CLOSE_TIMEOUT_S = 15.0  # seconds that what is left to be cleared away gets at the end
_IN_MEMORY = 1 << 22


class RemoteRunManager:
    """The runs of one command on one host. `line` is its connection, made with `news` and `log` of ours."""

    def __init__(
        self,
        open_connection: Callable[
            [Callable[[RunUpdate], None], Callable[[int, int, bytes], None]], ReconnectingConnection
        ],
    ):
        self._remote_runs: dict[int, RemoteRun] = {}
        self._sender = RunSender()
        self._threads: list[threading.Thread] = []
        self._py_spy: threading.Thread | None = None
        # No Event: ^C in the middle of its wait can leave its lock held, or have it let go of twice.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.connection = open_connection(self._news, self._log)

    def set_code_packs(self, packs: list[CodePack]) -> None:
        """The code that runs which begin from now on need."""
        self._sender.set_packs(packs)

    def start(self, remote_run: RemoteRun) -> None:
        """Send a run and start it there. Returns at once; `remote_run` says what becomes of it."""
        self._start_thread(remote_run)

    def attach(self, remote_run: RemoteRun) -> None:
        """Watch a run that began earlier."""
        remote_run.phase = WATCHING
        self._start_thread(remote_run)

    def cancel(self, remote_run: RemoteRun, how: str) -> None:
        """Ask for the run's end: CANCEL, or KILL, which waits for nothing. The host hears of it when it can; a second
        KILL waits for the host no more."""
        again = how == KILL and remote_run.cancel_requested == KILL
        remote_run.cancel_requested = how
        with self._sender.cancel_lock:
            if remote_run.phase == SENDING and not remote_run.was_sent and remote_run.aborted is None:
                self._abort_unstarted(remote_run, CANCELLED, "cancelled")
        if how == KILL and not remote_run.is_here and (again or not self.connection.is_up):
            self._abandon(remote_run)

    def wait(self, seconds: float) -> None:
        """Until something is heard of the runs, at most so long."""
        with suppress(queue.Empty):
            self._wakeups.get(timeout=seconds)

    def detach(self) -> None:
        """Stop watching; the runs go on."""
        self._leave_py_spy()
        for remote_run in self._remote_runs.values():
            remote_run.detached = True
        self._finish(lambda remote_run: True)

    def close(self) -> None:
        """Let what is being ended or cleared away come to its end, then hang up."""
        self._finish(lambda remote_run: remote_run.phase == CLEARING or bool(remote_run.cancel_requested))
        self._report_uncleared()
        self.connection.save_cache()
        self.connection.close()
        for remote_run in self._remote_runs.values():
            if remote_run.mirror is not None:
                remote_run.mirror.close()
            if remote_run.lock is not None:
                remote_run.lock.release()
                remote_run.lock = None

    def _leave_py_spy(self) -> None:
        """Nobody will be there to send it later."""
        from ci_tasks.hosts import py_spy

        until = time.monotonic() + _CLOSE_TIMEOUT_S
        if any(not run.is_here for run in self._remote_runs.values()) and not py_spy.was_sent(self.connection):
            thread = self._send_py_spy()
            while thread.is_alive() and self.connection.is_up and time.monotonic() < until:
                thread.join(_POLL_INTERVAL_S)

    def _send_py_spy(self) -> threading.Thread:
        """Once, and beside all else."""
        from ci_tasks.hosts import py_spy

        def send() -> None:
            with debug_log.ignored("sending py-spy"):
                py_spy.send(self.connection)

        if self._py_spy is None:
            self._py_spy = threading.Thread(target=send, daemon=True, name="ci-tasks py-spy")
            self._py_spy.start()
        return self._py_spy

    def _report_uncleared(self) -> None:
        name = self.connection.spec.name
        for remote_run in self._remote_runs.values():
            if remote_run.phase == CLEARING:
                left = f"{remote_run.directory} is still on {name}, which did not answer"
                print(f"ci-tasks: {left}; `ci-tasks clean --host {name}` removes it", file=sys.stderr, flush=True)

    def _finish(self, concerned: Callable[[RemoteRun], bool]) -> None:
        """Wait for threads, for a while. Only what is to be cleared away waits for a new link, too."""
        until = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread, remote_run in zip(self._threads, self._remote_runs.values(), strict=True):
            while thread.is_alive() and remote_run.aborted is None and concerned(remote_run):
                waits_for_link = remote_run.phase == CLEARING and remote_run.cancel_requested != KILL
                if time.monotonic() > until or not (self.connection.is_up or waits_for_link):
                    return
                thread.join(_POLL_INTERVAL_S)

    # -- one run ------------------------------------------------------------------------------------------------------

    def _start_thread(self, remote_run: RemoteRun) -> None:
        remote_run.key = len(self._remote_runs) + 1
        self._remote_runs[remote_run.key] = remote_run
        if remote_run.is_here:
            remote_run.mirror = RunHere(remote_run.run)
        else:
            remote_run.lock = remote_run.lock or lock_mirror(remote_run.run)
            remote_run.mirror = RunMirror(remote_run.run)
        thread = threading.Thread(
            target=self._follow, args=(remote_run,), daemon=True, name=f"ci-tasks run {remote_run.key}"
        )
        self._threads.append(thread)
        thread.start()

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
            except RequestRefused as refusal:  # it does not even clear away
                self._stop(remote_run, refusal.message)
            except CiTasksError as problem:
                self._stop(remote_run, problem.message)
            except OSError as error:
                self._stop(remote_run, f"{remote_run.run.path}: {error.strerror}", BLOCKED)
            except Exception as bug:
                self._stop(remote_run, f"{remote_run.run.path}: {debug_log.bug('following a run', bug)}")
        self._wake()

    def _advance(self, remote_run: RemoteRun, channel: Channel) -> None:
        if remote_run.phase == SENDING:
            if remote_run.cancel_requested:
                self._cancel_unstarted(remote_run, channel)
            else:
                self._sender.send(remote_run, channel)
            if remote_run.aborted is not None:
                return
            remote_run.phase = WATCHING  # from here on it runs, whatever else goes wrong
            self._sender.mark_delivered(channel)
        elif remote_run.phase == WATCHING:
            self._watch(remote_run, channel)
        if remote_run.phase == WATCHING and remote_run.detached:
            remote_run.phase = DONE
        elif remote_run.phase == WATCHING and self._wait_for_end(remote_run, channel):
            remote_run.phase = FETCHING
        if remote_run.phase == FETCHING:
            self._fetch(remote_run, channel)
        if remote_run.phase == CLEARING:
            if not remote_run.keep_remote and not (remote_run.mirror and remote_run.mirror.status.kept):
                self._clear(remote_run, channel)
            remote_run.phase = DONE

    def _cancel_unstarted(self, remote_run: RemoteRun, channel: Channel) -> None:
        """Of a run that is not wanted any more, nothing is left there, unless it has begun: then it is to be ended."""
        if remote_run.was_sent:
            try:
                self._watch(remote_run, channel)
                return
            except RequestRefused:
                self._clear(remote_run, channel)
        self._abort_unstarted(remote_run, CANCELLED, "cancelled")

    def _clear(self, remote_run: RemoteRun, channel: Channel) -> None:
        if not remote_run.is_here:
            channel.post(Clear(remote_run.directory, shared=not remote_run.keep_shared_files)).wait()

    def _watch(self, remote_run: RemoteRun, channel: Channel) -> None:
        post_watch(remote_run, channel).wait()

    def _wait_for_end(self, remote_run: RemoteRun, channel: Channel) -> bool:
        """Until the run is over (true), or is to go on without us. Raises LinkDied."""
        assert remote_run.mirror is not None
        record_clock(remote_run.run, self.connection.clock_ahead)
        remote_run.cancel_sent = ""
        send_py_spy_at = time.monotonic() + _SEND_PY_SPY_AFTER_S
        while not remote_run.mirror.ended.wait(_POLL_INTERVAL_S):
            if channel.died.is_set():
                raise LinkDied(channel.reason)
            if remote_run.cancel_requested != remote_run.cancel_sent:
                remote_run.cancel_sent = remote_run.cancel_requested
                channel.post(Cancel(remote_run.directory, kill=remote_run.cancel_requested == KILL))
            if self._py_spy is None and not remote_run.is_here and time.monotonic() > send_py_spy_at:
                self._send_py_spy()
            if remote_run.detached:
                remote_run.phase = DONE
            if remote_run.phase == DONE or remote_run.aborted is not None:
                return False
        return True

    def _fetch(self, remote_run: RemoteRun, channel: Channel) -> None:
        mirror = remote_run.mirror
        if isinstance(mirror, RunHere):
            if mirror.gone:
                channel.post(Cancel(remote_run.directory)).wait()  # ends what its agent has left
            remote_run.phase = CLEARING
            self._wake()
            return
        assert mirror is not None
        if mirror.error:
            self._abort(remote_run, BLOCKED, f"{mirror.error}; the run is kept on {self.connection.spec.name}")
            return
        if not mirror.is_complete() and not remote_run.refetched:
            remote_run.refetched, remote_run.phase = True, WATCHING
            mirror.restart_log()
            return
        if not mirror.is_complete():
            self._abort(
                remote_run,
                BLOCKED,
                f"the log here is not the one on {self.connection.spec.name}, though it was fetched twice",
            )
            return
        self._collect(remote_run, channel, mirror)
        if remote_run.aborted is None:
            mirror.finish()
            remote_run.phase = CLEARING
            self._wake()

    def _collect(self, remote_run: RemoteRun, channel: Channel, mirror: RunMirror) -> None:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=remote_run.run.path) as spool:

            def keep(chunk: bytes) -> None:
                if spool.tell() + len(chunk) > MAX_SIZE:
                    raise FrameError(f"artifacts of more than {MAX_SIZE >> 30} GiB")
                if mirror.error:
                    return
                try:
                    spool.write(chunk)
                except OSError as error:
                    mirror.error = f"cannot write {remote_run.run.path}: {error.strerror}"

            self._unless_killed(remote_run, channel.post(Collect(remote_run.directory, remote_run.secrets), keep))
            spool.seek(0)
            try:
                if not mirror.error:
                    mirror.unpack_artifacts(spool)
            except BundleError as problem:
                mirror.error = f"{self.connection.spec.name} sent artifacts that no host of ci-tasks sends: {problem}"
            except OSError as error:
                mirror.error = f"cannot write {remote_run.run.path}: {error.strerror}"
        if mirror.error:
            self._abort(remote_run, BLOCKED, f"{mirror.error}; the run is kept on {self.connection.spec.name}")

    def _unless_killed(self, remote_run: RemoteRun, pending: PendingRequest[Done]) -> None:
        """The answer; but a person who wants to be gone does not wait for ever. Raises what `wait` raises."""
        until = None
        while not pending.wait_for(_POLL_INTERVAL_S):
            if remote_run.cancel_requested == KILL:
                until = until or time.monotonic() + _CLOSE_TIMEOUT_S
                if time.monotonic() > until:
                    raise LinkDied("the host takes too long")
        pending.wait()

    def _refused(self, remote_run: RemoteRun, channel: Channel, refusal: RequestRefused) -> None:
        if refusal.code == "missing-base" and remote_run.phase == SENDING and self._sender.can_resend(remote_run):
            return
        if refusal.code == "elsewhere":
            self.connection.cache.clear_facts()
            self._stop(remote_run, refusal.message, BLOCKED if remote_run.phase == SENDING else LOST)
        elif remote_run.phase == SENDING:
            self._clear(remote_run, channel)  # half of it may be there
            self._abort_unstarted(remote_run, BLOCKED, refusal.message)
        elif remote_run.phase == WATCHING and refusal.code == "missing":
            self._missing(remote_run, channel, refusal)
        else:
            self._stop(remote_run, refusal.message)

    def _missing(self, remote_run: RemoteRun, channel: Channel, refusal: RequestRefused) -> None:
        """The run is not there: somebody has removed it, or it never began, since its client went away too early."""
        name = self.connection.spec.name
        if remote_run.mirror is not None and remote_run.mirror.status.exists:
            self._abort_unstarted(remote_run, LOST, refusal.message)
            return
        if not remote_run.keep_remote:
            self._clear(remote_run, channel)
        self._abort_unstarted(remote_run, LOST, f"it never began on {name}: the command that sent it went away before")

    def _stop(self, remote_run: RemoteRun, why: str, status: str = "") -> None:
        """What cannot go on. A run that is home stays so, and of one that was never asked for nothing is lost."""
        if remote_run.phase == CLEARING:
            remote_run.warning, remote_run.phase = f"could not be cleared away: {why}", DONE
        else:
            begun = remote_run.phase != SENDING or (remote_run.was_sent and not self.connection.was_refused)
            self._abort(remote_run, status or (LOST if begun else BLOCKED), why)

    def _abandon(self, remote_run: RemoteRun) -> None:
        """A person leaves, and the host does not hear of it."""
        name = self.connection.spec.name
        if remote_run.phase in (CLEARING, DONE):
            remote_run.phase = DONE
        elif remote_run.phase == FETCHING:
            self._abort(remote_run, LOST, f"left before all of it was here; `ci-tasks fetch` brings it from {name}")
        elif remote_run.aborted is None:
            why = f"left while {name} did not answer; `ci-tasks cancel` ends it when {name} can be reached"
            self._abort(remote_run, LOST, why)

    def _abort_unstarted(self, remote_run: RemoteRun, status: str, reason: str) -> None:
        """It has no end of its own, and nobody needs to come back for it."""
        try:
            mark_complete(remote_run.run)
        except OSError:
            pass
        self._abort(remote_run, status, reason)

    def _abort(self, remote_run: RemoteRun, status: str, reason: str) -> None:
        remote_run.aborted = (status, reason)
        self._wake()

    def _wake(self) -> None:
        """Whoever waits looks again; one word is enough, however much is heard meanwhile."""
        if self._wakeups.empty():
            self._wakeups.put(None)

    # -- the line's thread -------------------------------------------------------------------------------------------

    # One run's trouble here is not another's: whatever a mirror cannot take ends its own run only.

    def _news(self, update: RunUpdate) -> None:
        self._tell(update.key, lambda mirror: mirror.update_status(update))

    def _log(self, key: int, offset: int, chunk: bytes) -> None:
        self._tell(key, lambda mirror: mirror.write_log(offset, chunk))

    def _tell(self, key: int, tell: Callable[[RunMirror | RunHere], None]) -> None:
        remote_run = self._remote_runs.get(key)
        if remote_run is None or remote_run.mirror is None:
            return
        try:
            tell(remote_run.mirror)
        except Exception as error:  # a full disk, or what no host of ours sends
            if not isinstance(error, OSError):
                debug_log.LOGGER.error("what came of %s", remote_run.run.path, exc_info=error)
            remote_run.mirror.fail(f"cannot take what came: {error!r}")
        self._wake()
