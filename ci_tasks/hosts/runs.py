"""Runs on a host: each is sent, followed, fetched and cleared away, whatever becomes of the link.

Each run has a thread. When the link has died, the run begins its phase again on the next one, since every request may
be repeated. The host owns the truth; here is a mirror: the same bytes, less the secrets that the host did not mask.
`remote.json` beside them says where the run is, and whether everything of it is here. One process at a time may write
the files; others read them, as they would a local run's.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Any, BinaryIO

from ci_tasks import debug_log, safe_output
from ci_tasks.agent.codec import from_json, masked_record
from ci_tasks.agent.files import try_lock
from ci_tasks.agent.finish import mask_run
from ci_tasks.agent.mask import Masker
from ci_tasks.agent.protocol import UPDATE, FrameError, Request, RunUpdate
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan, RemoteLocation
from ci_tasks.agent.run_directory import RunDir, given_secrets, read_plan, read_remote, read_status, write_record
from ci_tasks.checkout.snapshot import Snapshot, thin_pack
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError
from ci_tasks.hosts.connection import Channel, Receiver, ReconnectingConnection, RequestRefused, host_id
from ci_tasks.hosts.transport import LinkDied, LocalTransport, Transport
from ci_tasks.records import BLOCKED, CANCELLED, LOST
from ci_tasks.results import store

SENDING, WATCHING, FETCHING, CLEARING, DONE = "sending", "running", "fetching", "clearing", "done"
CANCEL, KILL = "cancel", "kill"
MAX_LOG_BYTES = 1 << 35  # of a log that is kept here
_POLL_INTERVAL_S = 0.05
_LINK_INTERVAL_S = 0.2  # between two looks whether the link of a run is still there
_CLOSE_TIMEOUT_S = 15.0  # seconds that what is left to be cleared away gets at the end


@dataclass(frozen=True)
class RunState:
    """The state of a started run. `is_complete`: it ended and its files are here. `aborted`: status and reason of a run
    that has no end of its own. `has_started`: it continues without the client. `note`: its phase, if not running."""

    is_complete: bool = False
    has_started: bool = True
    aborted: tuple[str, str] | None = None
    note: str = ""

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.aborted is not None


@dataclass
class RemoteRun:
    """One run on the host. `directory` is its run directory there; `code` is its checkout; `sbatch_script` is what a
    cluster gets for it. `is_here`: the host is this machine and the run directory is `run`, so that nothing is sent,
    fetched or cleared away."""

    run: RunDir
    directory: str
    plan: Plan = field(default_factory=Plan)
    sbatch_script: str = ""
    code: Snapshot | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_here: bool = False
    keep_remote: bool = False  # its directory there is not cleared away at the end
    keep_shared_files: bool = False  # rows that use them may follow; the command clears them away at its end
    lock: BinaryIO | None = None
    phase: str = SENDING
    aborted: tuple[str, str] | None = None  # status and reason of a run that has no end of its own here
    warning: str = ""  # what a person should know although the run has its end
    mirror: RunMirror | None = None
    # What the manager knows: what wakes its thread, the link on which it is followed, and by which request.
    news: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    followed_on: Channel | None = None
    following: object = None
    is_posted: bool = False  # at least once: the host may have started it
    cancel_requested: str = ""  # CANCEL or KILL
    code_resent: bool = False
    refetched: bool = False
    detached: bool = False

    @property
    def state(self) -> RunState:
        if self.aborted:
            return RunState(aborted=self.aborted)
        if self.is_fetched:
            return RunState(is_complete=True, note=self.warning)
        return RunState(has_started=self.phase != SENDING, note="" if self.phase == WATCHING else self.phase)

    @property
    def is_fetched(self) -> bool:
        """Whether everything that is to come of the run is here."""
        return self.phase in (CLEARING, DONE)

    @property
    def is_told(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.phase == DONE or self.aborted is not None

    def close(self) -> None:
        """Let another process have its files."""
        if self.mirror is not None:
            self.mirror.close()
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def write_location(run: RunDir, spec: HostSpec, directory: str, *, adopted: bool = False) -> None:
    """Note where the run is, before anything is sent: a later command finds it. An adopted one was started by another
    client, which will want to fetch it as well."""
    os.makedirs(run.path, exist_ok=True)
    place = spec.name, spec.kind, spec.address, spec.workspace, directory
    write_record(run.remote, RemoteLocation(*place, adopted=adopted, persist=spec.persist))


def write_complete(run: RunDir) -> None:
    """There is nothing left to fetch."""
    if record := read_remote(run):
        write_record(run.remote, replace(record, complete=True))


def lock_mirror(run: RunDir) -> BinaryIO | None:
    """The right to write the files of a run of another host, until the file is closed; None if another process has
    it."""
    handle = os.open(os.path.join(run.path, "mirror.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    file = os.fdopen(handle, "rb+")
    if try_lock(handle) is not False:
        return file
    file.close()
    return None


class RunMirror:
    """The files of a run as they come over the link; with `is_here` they are here already. `error` is why nothing more
    can be kept here, `refusal` why its host does not follow it, `has_status` whether the host has said anything of the
    run yet."""

    def __init__(self, run: RunDir, *, is_here: bool = False) -> None:
        self.run, self.error, self.status, self._is_here = run, "", read_status(run), is_here
        self.refusal: RequestRefused | None = None
        self.has_status, self.offset = False, 1 << 62  # none of its log is sent
        self.ended = threading.Event()
        self._log: int | None = None
        self._writing = threading.RLock()  # the log may be started again in another thread
        if not is_here:
            safe_output.add_secret_variables(read_plan(run).secrets)
            self._secrets = safe_output.secret_values()
            self._open()

    def _open(self) -> None:
        self.offset, self._digest = 0, hashlib.sha256()
        # A mask is as long as what it hides, so that an offset here is one of the log there.
        self._masker = Masker(self._secrets, keep_length=True)
        # Appended to: if it is cut here, it gets too short, which is noticed, and no hole, which is not.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._log = os.open(self.run.log, flags, 0o600)
            while chunk := os.read(self._log, 1 << 20):
                self._digest.update(chunk)
                self.offset += len(chunk)
        except OSError as error:
            self.fail(f"cannot write {self.run.log}: {error.strerror}")

    def take_news(self, kind: bytes, offset: int, payload: bytes) -> None:
        """A piece of its log, or a status. Raises RecordError."""
        if kind == UPDATE:
            self.take(self.update_status, from_json(RunUpdate, payload, where="update"))
        else:
            self.take(self.write_log, offset, payload)

    def take(self, take: Callable[..., object], *what: object) -> None:
        """Take what comes of it. What cannot be taken ends this run only."""
        try:
            if not self.error:
                take(*what)
        except OSError as error:  # a full disk
            self.fail(f"cannot write {self.run.path}: {error.strerror}")
        except FrameError as error:
            self.fail(f"its host sent invalid artifacts: {error}")
        except Exception as error:  # what no host of ours sends
            debug_log.debug("what came of %s", self.run.path, exc_info=error)
            self.fail(f"cannot store the artifacts: {error!r}")

    def fail(self, why: str) -> None:
        """Nothing more can be kept here."""
        self.error = self.error or why
        self.ended.set()

    def update_status(self, update: RunUpdate) -> None:
        """A status of the run, or its end."""
        if update.code:
            self.refusal = RequestRefused(update.code, update.problem)
            self.ended.set()
        elif update.status is not None:
            self.status, self.has_status = update.status, True
            if not self._is_here:
                self.status = masked_record(self.status, self._secrets)
                write_record(self.run.status, self.status)
            if update.over:
                self.ended.set()

    def write_log(self, offset: int, chunk: bytes) -> None:
        """Bytes of the log from `offset`; what is here already is not written twice."""
        with self._writing:
            if offset > self.offset or self._log is None:
                return  # a gap, which only a fault of ours makes: the end does not match and asks for everything again
            chunk = chunk[self.offset - offset :]
            self._digest.update(chunk)
            self.offset += len(chunk)
            self._append(self._masker.feed(chunk))
        if self.offset > MAX_LOG_BYTES:
            self.fail(f"the log is longer than {MAX_LOG_BYTES >> 30} GiB")

    def _append(self, data: bytes) -> None:
        while data and self._log is not None:
            data = data[os.write(self._log, data) :]

    def is_complete(self) -> bool:
        """Whether the log here is the log there, after its end. An agent that is gone, or whose disk was full, cannot
        say."""
        with self._writing:
            self._append(self._masker.flush())
        if self._log is not None and os.fstat(self._log).st_size != self.offset:
            return False  # it was cut or lengthened here
        return self.status.gone or self.status.log_sha256 in (None, self._digest.hexdigest())

    def follow_again(self, *, log: bool = False) -> None:
        """Its host is asked again; with `log` for the log from its beginning, too."""
        with self._writing:
            if log:
                self.close()
                os.unlink(self.run.log)
                self._open()
            if log or self.refusal is not None:
                self.refusal = None
                self.ended.clear()

    def mask_artifacts(self) -> None:
        """Of the files that came. Raises OSError."""
        mask_run(self.run, self._secrets, has_secrets=bool(given_secrets(read_plan(self.run))), remove=shutil.rmtree)

    def finish(self) -> None:
        """All of it is here. A record from before, when it could not be fetched, is not its end."""
        self.close()
        if not self._is_here:
            with suppress(FileNotFoundError):
                os.unlink(self.run.record)
            write_complete(self.run)

    def close(self) -> None:
        with self._writing:
            if self._log is not None:
                os.close(self._log)
                self._log = None


class RemoteRunManager:
    """The runs of one command on one host. They have one code, which goes once over each connection."""

    def __init__(self, connection: ReconnectingConnection) -> None:
        self.connection = connection
        self._runs: list[RemoteRun] = []
        self._cancelling = threading.Lock()  # a run is not cancelled while it is posted
        self._packing = threading.Lock()  # no run is posted before the code that it needs
        self._code_on: Channel | None = None
        self._sends_everything = False  # the host does not have what we thought it had
        self._is_closed = False
        # No Event: ^C in the middle of a wait can leave the lock of one held, or have it let go of twice.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()  # for `wait`

    def create(self, remote_runs: Sequence[RemoteRun]) -> None:
        """Make runs, with their checkouts, and start none. Raises what the connection raises, RequestRefused."""
        channel = self.connection.channel()
        for known in (self.connection.cache.trees, ()):
            try:
                for code in [each.code for each in remote_runs if each.code][:1]:
                    channel.post(Request("receive"), pack=thin_pack(code, known)).wait()
                for each in remote_runs:
                    channel.post(_create(each)).wait()
                return
            except RequestRefused as refusal:
                if refusal.code != "missing-base" or not known:
                    raise

    def send(self, remote_run: RemoteRun) -> None:
        """Send a run and start it there. Returns at once; `remote_run` says what becomes of it."""
        if not remote_run.is_here:
            remote_run.lock = remote_run.lock or lock_mirror(remote_run.run)
        remote_run.mirror = RunMirror(remote_run.run, is_here=remote_run.is_here)
        self._runs.append(remote_run)
        thread = threading.Thread(target=self._carry_out, args=(remote_run,), daemon=True, name="ci-tasks run")
        thread.start()

    def attach(self, remote_run: RemoteRun) -> None:
        """Follow a run that was started earlier."""
        remote_run.phase = WATCHING
        self.send(remote_run)

    def end(self, remote_run: RemoteRun, how: str) -> None:
        """Ask for the run's end: CANCEL, or KILL, which waits for nothing. The host gets it when it is reachable; a
        second KILL does not wait for the host."""
        again = how == KILL and remote_run.cancel_requested == KILL
        with self._cancelling:
            remote_run.cancel_requested = how
            self._is_never_sent(remote_run)
        if how == KILL and not remote_run.is_here and (again or not self.connection.is_up):
            self._abandon(remote_run)
        _wake(remote_run.news)

    def wait(self, seconds: float) -> bool:
        """Until there is news of the runs, at most so long. Returns whether there is."""
        with suppress(queue.Empty):
            self._wakeups.get(timeout=seconds)
            return True
        return False

    def detach(self) -> None:
        """Stop following; the runs continue."""
        for remote_run in self._runs:
            remote_run.detached = True
            _wake(remote_run.news)
        self.finish(lambda remote_run: True)

    def close(self) -> None:
        """Let what is being ended or cleared away come to its end, then hang up."""
        self.finish(lambda remote_run: remote_run.phase == CLEARING or bool(remote_run.cancel_requested))
        name = self.connection.spec.name
        for remote_run in self._runs:
            if remote_run.phase == CLEARING:
                left = f"{remote_run.directory} is still on {name}, which did not answer"
                print(f"ci-tasks: {left}; `ci-tasks clean --host {name}` removes it", file=sys.stderr, flush=True)
        self._is_closed = True
        self.connection.close()
        for remote_run in self._runs:
            remote_run.close()

    def finish(self, concerned: Callable[[RemoteRun], bool]) -> None:
        """Wait for runs, for a while. Only clearing waits for a new link, too."""
        until = time.monotonic() + _CLOSE_TIMEOUT_S
        for remote_run in self._runs:
            while not remote_run.is_told and concerned(remote_run):
                waits_for_link = remote_run.phase == CLEARING and remote_run.cancel_requested != KILL
                if time.monotonic() > until or not (self.connection.is_up or waits_for_link):
                    return
                self.wait(_POLL_INTERVAL_S)

    # -- the course of a run, in its thread ---------------------------------------------------------------------------

    def _carry_out(self, remote_run: RemoteRun) -> None:
        """To its end, over as many links as that takes."""
        while not (remote_run.is_told or self._is_closed):
            try:
                self._go_on(remote_run, self.connection.channel())
            except LinkDied:
                if remote_run.cancel_requested == KILL:
                    self._abandon(remote_run)
            except CiTasksError as problem:
                self._stop(remote_run, problem.message)
            except OSError as error:
                self._stop(remote_run, f"cannot write {remote_run.run.path}: {error.strerror}", BLOCKED)
            except Exception as bug:
                self._stop(remote_run, f"{remote_run.run.path}: {debug_log.bug('following a run', bug)}")
            _wake(self._wakeups)

    def _go_on(self, remote_run: RemoteRun, channel: Channel) -> None:
        """As far as this link allows. Raises LinkDied."""
        mirror = remote_run.mirror
        assert mirror is not None
        try:
            if remote_run.phase == SENDING:
                self._begin(remote_run, channel)
            if remote_run.phase == WATCHING:
                self._watch(remote_run, channel, mirror)
        except RequestRefused as refusal:
            self._refused(remote_run, channel, refusal)
            return
        if remote_run.phase == FETCHING:
            self._fetch(remote_run, channel, mirror)
        if remote_run.phase == CLEARING:
            if not (remote_run.is_here or remote_run.keep_remote or mirror.status.kept):
                self._clear(remote_run, channel)
            remote_run.phase = DONE

    def _begin(self, remote_run: RemoteRun, channel: Channel) -> None:
        """Code, run and start in one go. A run that may have started is sent again although it is cancelled: only then
        its host can be asked to end it."""
        pending, code = [], remote_run.code
        with self._packing:
            if code is not None and self._code_on is not channel:
                known = () if self._sends_everything else self.connection.cache.trees
                pending.append(channel.post(Request("receive"), pack=thin_pack(code, known)))
                self._code_on = channel
        with self._cancelling:
            if self._is_never_sent(remote_run):
                return
            remote_run.is_posted = True
        secrets, batch = remote_run.secrets, remote_run.sbatch_script
        pending.append(channel.post(_create(remote_run, start=True, secrets=secrets, sbatch_script=batch)))
        self._follow(channel, remote_run)
        for each in pending:
            each.wait()
        remote_run.phase = WATCHING  # from here on it runs, whatever else goes wrong
        if code is not None:
            self.connection.note_tree(code.flat)

    def _follow(self, channel: Channel, remote_run: RemoteRun) -> None:
        mirror = remote_run.mirror
        assert mirror is not None
        mirror.follow_again()
        following = remote_run.following = object()
        remote_run.followed_on = channel

        def take(kind: bytes, offset: int, payload: bytes) -> None:
            if remote_run.following is following:  # not late news of an earlier request
                mirror.take_news(kind, offset, payload)
                if kind == UPDATE or mirror.error:
                    _wake(remote_run.news)
                _wake(self._wakeups)

        channel.post(Request("follow", remote_run.directory, offset=mirror.offset), take)

    def _watch(self, remote_run: RemoteRun, channel: Channel, mirror: RunMirror) -> None:
        if remote_run.followed_on is not channel:
            self._follow(channel, remote_run)
        asked = ""
        while not mirror.ended.is_set():
            if remote_run.detached:
                remote_run.phase = DONE
                return
            if channel.died.is_set():
                raise LinkDied(channel.reason)
            if remote_run.cancel_requested != asked:
                asked = remote_run.cancel_requested
                channel.post(Request("cancel", remote_run.directory, kill=asked == KILL))
            with suppress(queue.Empty):
                remote_run.news.get(timeout=_LINK_INTERVAL_S)
        if mirror.refusal is not None:
            raise mirror.refusal
        remote_run.phase = FETCHING

    def _fetch(self, remote_run: RemoteRun, channel: Channel, mirror: RunMirror) -> None:
        name = self.connection.spec.name
        if not remote_run.is_here and not mirror.error and not mirror.is_complete():
            if not remote_run.refetched:
                remote_run.refetched, remote_run.phase, remote_run.followed_on = True, WATCHING, None
                mirror.follow_again(log=True)
                return  # it is watched again
            mirror.fail(f"the log here differs from the one on {name}, even after a second fetch")
        if remote_run.is_here and mirror.status.gone:
            channel.post(Request("cancel", remote_run.directory)).wait()  # ends what its agent has left
        elif not remote_run.is_here and not mirror.error:
            files = Receiver(remote_run.run.path)
            collect = Request("collect", remote_run.directory, secrets=remote_run.secrets)
            try:
                channel.post(collect, partial(mirror.take, files.take)).wait()
            finally:
                files.close()
            if not mirror.error:
                mirror.mask_artifacts()
        if mirror.error:
            self._abort(remote_run, BLOCKED, f"{mirror.error}; the run is kept on {name}")
            return
        mirror.finish()
        remote_run.phase = CLEARING
        _wake(self._wakeups)

    def _clear(self, remote_run: RemoteRun, channel: Channel) -> None:
        channel.post(Request("clear", remote_run.directory, shared=not remote_run.keep_shared_files)).wait()

    # -- runs that cannot go on ---------------------------------------------------------------------------------------

    def _refused(self, remote_run: RemoteRun, channel: Channel, refusal: RequestRefused) -> None:
        was_sending, never_began, why = remote_run.phase == SENDING, remote_run.phase == SENDING, refusal.message
        assert remote_run.mirror is not None
        if refusal.code == "missing-base" and was_sending and not remote_run.code_resent:
            remote_run.code_resent = self._sends_everything  # for another run of ours
            if not self._sends_everything:
                self._sends_everything, self._code_on = True, None
            return
        if refusal.code == "elsewhere" or not (was_sending or refusal.code == "missing"):
            self.connection.cache.clear_facts()
            self._stop(remote_run, why, BLOCKED if was_sending else LOST)
            return
        if not was_sending and not remote_run.mirror.status.exists:
            why = f"it never started on {self.connection.spec.name}: the command that sent it ended first"
            never_began = not remote_run.keep_remote
        if never_began and not remote_run.is_here:
            self._clear(remote_run, channel)  # half of it may be there
        self._abort(remote_run, BLOCKED if was_sending else LOST, why, is_over=True)

    def _stop(self, remote_run: RemoteRun, why: str, status: str = "") -> None:
        """The run that cannot continue. A run that is fetched stays so, and of one that was never asked for nothing is
        lost."""
        if remote_run.phase == CLEARING:
            remote_run.warning, remote_run.phase = f"could not be removed: {why}", DONE
        else:
            may_have_begun = remote_run.phase != SENDING or (remote_run.is_posted and self.connection.has_answered)
            self._abort(remote_run, status or (LOST if may_have_begun else BLOCKED), why)

    def _abandon(self, remote_run: RemoteRun) -> None:
        """A person leaves, and the host is not told."""
        name = self.connection.spec.name
        if remote_run.is_fetched:
            remote_run.phase = DONE
        elif remote_run.aborted is None:
            why = f"left while {name} did not answer; later `ci-tasks cancel` ends it, `ci-tasks fetch` brings it"
            self._abort(remote_run, LOST, why)

    def _is_never_sent(self, remote_run: RemoteRun) -> bool:
        """Whether it was cancelled before its host could be told."""
        if remote_run.phase == SENDING and remote_run.cancel_requested and not remote_run.is_posted:
            self._abort(remote_run, CANCELLED, "cancelled", is_over=True)
        return remote_run.aborted is not None

    def _abort(self, remote_run: RemoteRun, status: str, reason: str, *, is_over: bool = False) -> None:
        """`is_over`: nothing of it is fetched later."""
        if is_over:
            with suppress(OSError, ValueError):
                write_complete(remote_run.run)
        remote_run.aborted = remote_run.aborted or (status, reason)
        _wake(self._wakeups)


def _create(remote_run: RemoteRun, **more: Any) -> Request:
    plan, parts = remote_run.plan, tuple(remote_run.code.checkout_parts) if remote_run.code else ()
    return Request("create", remote_run.directory, plan=plan, script=plan.script, parts=parts, **more)


def _wake(waiting: queue.SimpleQueue[None]) -> None:
    """One word is enough, however much is heard meanwhile."""
    if waiting.empty():
        waiting.put(None)


def open_connection(spec: HostSpec) -> ReconnectingConnection:
    """To the host, in the background."""
    if spec.kind == "local":
        spec = replace(spec, workspace=str(store.home()))
    return ReconnectingConnection(spec, _transport(spec), store.home() / "hosts" / f"{host_id(spec)}.json")


def _transport(spec: HostSpec) -> Transport:
    if spec.kind == "local":
        return LocalTransport()
    from ci_tasks.hosts import mux  # a command of this machine does not need it

    return mux.MuxTransport(mux.directory() if spec.persist else None, spec.address or spec.name)
