"""A run on another host, and its files here: the same bytes, less the secrets that its host did not mask.

`remote.json` beside them says where the run is, and whether everything of it is here. One process at a time may write
the files; others read them, as they would a local run's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

from ci_tasks import debug_log, known_secrets
from ci_tasks.agent.artifacts import mask_run
from ci_tasks.agent.codec import masked_record
from ci_tasks.agent.files import try_lock
from ci_tasks.agent.mask import Masker
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import CheckoutPart, Plan, RemoteLocation
from ci_tasks.agent.run_directory import RunDir, given_secrets, read_plan, read_remote, read_status, write_record
from ci_tasks.agent.serving import bundle
from ci_tasks.agent.serving.messages import RunUpdate
from ci_tasks.config import HostSpec
from ci_tasks.hosts.connection import Channel, RequestRefused

SENDING, WATCHING, FETCHING, CLEARING, DONE = "sending", "running", "fetching", "clearing", "done"
CANCEL, KILL = "cancel", "kill"
MAX_LOG_BYTES = 1 << 35  # of a log that is kept here


@dataclass(frozen=True)
class RunState:
    """The state of a started run. `is_complete`: it ended and its files are here. `aborted`: status and reason of
    a run that has no end of its own. `has_started`: it goes on without us. `note`: its phase, if not running."""

    is_complete: bool = False
    has_started: bool = True
    aborted: tuple[str, str] | None = None
    note: str = ""

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.aborted is not None


@dataclass(frozen=True)
class CodePack:
    """The code: `build(known)` gives its objects less those of the trees that the host has; `mark_sent` is called when
    it is there."""

    tree: str
    build: Callable[[Sequence[str]], Iterable[bytes]]
    known_trees: tuple[str, ...] = ()
    mark_sent: Callable[[], None] = lambda: None


@dataclass
class RemoteRun:
    """One run on the host. `directory` is its run directory there; `parts` name its checkout; `sbatch_script` is what a
    cluster gets for it. `is_here`: the host is this machine and the run directory is `run`, so that nothing is sent,
    fetched or cleared away."""

    run: RunDir
    directory: str
    plan: Plan = field(default_factory=Plan)
    script: str = ""
    sbatch_script: str = ""
    parts: Sequence[CheckoutPart] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_here: bool = False
    keep_remote: bool = False  # its directory there is not cleared away at the end
    keep_shared_files: bool = False  # rows that use them may follow; the command clears them away at its end
    lock: BinaryIO | None = None
    phase: str = SENDING
    aborted: tuple[str, str] | None = None  # status and reason of a run that has no end of its own here
    warning: str = ""  # what a person should know although the run has its end
    mirror: RunMirror | None = None
    # What the manager knows: the number that the host calls it by, and on which link; what wakes its thread.
    key: int = 0
    news: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    followed_on: Channel | None = None
    sent_on: list[Channel] = field(default_factory=list)
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

    @property
    def may_have_begun(self) -> bool:
        """Whether the host may have heard of it: a host that refuses our greeting handles no request."""
        return self.phase != SENDING or any(not channel.was_refused for channel in self.sent_on)

    def close(self) -> None:
        """Let another process have its files."""
        if self.mirror is not None:
            self.mirror.close()
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def secrets_of(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of a plan's secrets, as far as the caller has them."""
    return {name: environ[name] for name in names if name in environ}


def write_remote_location(run: RunDir, spec: HostSpec, directory: str, *, adopted: bool = False) -> None:
    """Note where the run is, before anything is sent: a later command finds it. An adopted one was started by another
    client, which will want to fetch it as well."""
    os.makedirs(run.path, exist_ok=True)
    place = spec.name, spec.kind, spec.address, spec.workspace, directory
    write_record(run.remote, RemoteLocation(*place, adopted=adopted, persist=spec.persist))


def update_location(run: RunDir, **changes: Any) -> None:
    """`complete`: nothing of the run is to be fetched any more. `clock_ahead`: of the clock that its times are from."""
    record = read_remote(run)
    if record is not None and replace(record, **changes) != record:
        write_record(run.remote, replace(record, **changes))


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
        self.has_status, self.offset = False, 1 << 62  # none of its log is to be sent
        self.ended = threading.Event()
        self._log: int | None = None
        self._writing = threading.RLock()  # the log may be started again in another thread
        if not is_here:
            known_secrets.add_variables(read_plan(run).secrets)
            self._secrets = known_secrets.values()
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

    def take(self, take: Callable[[], object]) -> None:
        """Take what comes of it. What cannot be taken ends this run only."""
        try:
            take()
        except OSError as error:  # a full disk
            self.fail(f"cannot write {self.run.path}: {error.strerror}")
        except Exception as error:  # what no host of ours sends
            debug_log.LOGGER.error("what came of %s", self.run.path, exc_info=error)
            self.fail(f"cannot take what came: {error!r}")

    def fail(self, why: str) -> None:
        """Nothing more can be kept here."""
        self.error = self.error or why
        self.ended.set()

    def update_status(self, update: RunUpdate) -> None:
        """A status of the run, or its end. An agent that is gone without an end is noted in the status here."""
        if update.code:
            self.refusal = RequestRefused(update.code, update.problem)
            self.ended.set()
        elif update.problem:
            self.fail(f"cannot take what came: {update.problem}")
        elif update.status is not None and not self.error:
            self.status, self.has_status = replace(update.status, gone=update.gone), True
            if not self._is_here:
                self.status = masked_record(self.status, self._secrets)
                write_record(self.run.status, self.status)
            if update.over:
                self.ended.set()

    def write_log(self, offset: int, chunk: bytes) -> None:
        """Bytes of the log from `offset`; what is here already is not written twice."""
        with self._writing:
            if offset > self.offset or self.error or self._log is None:
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
        """Whether the log here is the log there, after its end. An agent that is gone cannot say, nor one whose
        disk was full."""
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

    def unpack_artifacts(self, spool: Any) -> None:
        """Store the small files and artifacts of a bundle. Raises BundleError, OSError."""
        bundle.unpack(spool, self.run.path)
        old = mask_run(self.run, self._secrets, has_secrets=bool(given_secrets(read_plan(self.run))))
        if old:
            shutil.rmtree(old)

    def finish(self) -> None:
        """All of it is here. A record from before, when it could not be fetched, is not its end."""
        self.close()
        if not self._is_here:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.run.record)
            update_location(self.run, complete=True)

    def close(self) -> None:
        with self._writing:
            if self._log is not None:
                os.close(self._log)
                self._log = None
