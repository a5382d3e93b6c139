"""A run of another host, as it grows here: the same files under the same names, byte for byte, less the secrets that
its host did not mask.

`remote.json` beside them says where the run is, and whether everything of it is here. One process at a time may write a
mirror; others read its files, as they would a local run's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from dataclasses import replace
from typing import Any

from ci_tasks import known_secrets
from ci_tasks.agent.exit_gate import mask_run, masked_record
from ci_tasks.agent.file_lock import try_lock
from ci_tasks.agent.job_environment import given_secrets
from ci_tasks.agent.mask import Masker
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status, write_record
from ci_tasks.agent.serving import bundle
from ci_tasks.agent.serving.messages import RunUpdate

_CHUNK = 1 << 20
MAX_LOG_BYTES = 1 << 35  # of a log that is kept here


def mark_complete(run: RunDir) -> None:
    """Nobody needs to come back for the run."""
    record = read_remote(run)
    if record is not None:
        write_record(run.remote, replace(record, complete=True))


def record_clock(run: RunDir, ahead: float) -> None:
    """Note by how much the clock is ahead that the run's times are from."""
    record = read_remote(run)
    if record is not None and record.clock_ahead != ahead:
        write_record(run.remote, replace(record, clock_ahead=ahead))


class RunMirror:
    """Takes what comes over the link. `error` is why nothing more can be kept here, such as a full disk."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        known_secrets.add_variables(read_plan(run).secrets)
        self._secrets = known_secrets.values()
        self.error = ""
        self.status = read_status(run)
        self.ended = threading.Event()
        self.gone = False
        self.has_status = False  # whether the host has said anything of the run yet
        self._digest = hashlib.sha256()
        self._log: int | None = None
        # The last words of a dead link and the first of the next one come in two threads.
        self._writing = threading.RLock()
        self.offset = 0
        self._open()

    def write_log(self, offset: int, chunk: bytes) -> None:
        """Bytes of the log from `offset`; what is here already is not written twice."""
        with self._writing:
            if offset > self.offset or self.error or self._log is None:
                return  # a gap, which only a fault of ours makes: the end does not match and asks for everything again
            chunk = chunk[self.offset - offset :]
            if self.offset + len(chunk) > MAX_LOG_BYTES:
                self.fail(f"the log is longer than {MAX_LOG_BYTES >> 30} GiB")
                return
            try:
                self._digest.update(chunk)
                self.offset += len(chunk)
                self._append(self._masker.feed(chunk))
            except OSError as error:
                self._fail(error)

    def _append(self, data: bytes) -> None:
        while data and self._log is not None:
            data = data[os.write(self._log, data) :]

    def update_status(self, update: RunUpdate) -> None:
        """A status of the run, or its end. An agent that is gone without an end is noted in the status here."""
        if update.problem:
            self.fail(f"cannot take what came: {update.problem}")
        if update.status is None or self.error:
            return
        self.gone = update.gone
        self.status = masked_record(replace(update.status, gone=update.gone), self._secrets)
        try:
            write_record(self.run.status, self.status)
        except OSError as error:
            self._fail(error)
        if update.over:
            self.ended.set()
        self.has_status = True

    def is_complete(self) -> bool:
        """Whether the log here is the log there, after its end. An agent that is gone cannot say, nor one whose
        disk was full."""
        with self._writing:
            try:
                self._append(self._masker.flush())
            except OSError as error:
                self._fail(error)
        if self._log is not None and os.fstat(self._log).st_size != self.offset:
            return False  # somebody has cut or lengthened it
        expected = self.status.log_sha256
        return self.gone or expected is None or expected == self._digest.hexdigest()

    def restart_log(self) -> None:
        """Forget the log: it comes from its beginning once more."""
        with self._writing:
            self.ended.clear()
            self.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.run.log)
            self._open()

    def unpack_artifacts(self, spool: Any) -> None:
        """Take over docker.json, events and artifacts. Raises BundleError, OSError."""
        bundle.unpack(spool, self.run.path)
        old = mask_run(self.run, self._secrets, has_secrets=bool(given_secrets(read_plan(self.run))))
        if old:
            shutil.rmtree(old)

    def finish(self) -> None:
        """All of it is here. What was said of it before, when it could not be brought home, was not its end."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run.record)
        mark_complete(self.run)

    def fail(self, why: str) -> None:
        """Nothing more can be kept here."""
        self.error = self.error or why
        self.ended.set()

    def close(self) -> None:
        with self._writing:
            if self._log is not None:
                os.close(self._log)
                self._log = None

    def _open(self) -> None:
        self.offset, self._digest = 0, hashlib.sha256()
        # A mask is as long as what it hides, so that an offset here is one of the log there.
        self._masker = Masker(self._secrets, keep_length=True)
        try:
            # Appended to: where somebody cuts it, it gets too short, which is noticed, and no hole, which is not.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._log = os.open(self.run.log, flags, 0o600)
            while chunk := os.read(self._log, _CHUNK):
                self._digest.update(chunk)
                self.offset += len(chunk)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.fail(f"cannot write {self.run.path}: {error.strerror}")


class RunHere:
    """A run of this machine, in the place of its mirror: its files are here already."""

    offset = 1 << 62  # of its log, of which nothing is to be sent

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.error = ""
        self.status = read_status(run)
        self.ended = threading.Event()
        self.gone = self.has_status = False

    def write_log(self, offset: int, chunk: bytes) -> None:
        pass

    def update_status(self, update: RunUpdate) -> None:
        if update.status is not None:
            self.status, self.gone, self.has_status = update.status, update.gone, True
            if update.over:
                self.ended.set()

    def fail(self, why: str) -> None:
        self.error = self.error or why
        self.ended.set()

    def close(self) -> None:
        pass


class MirroredFiles:
    """The right to write a mirror, for as long as this process has it; `None` from `hold` where another has."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        os.close(self._handle)


def lock_mirror(run: RunDir) -> MirroredFiles | None:
    handle = os.open(os.path.join(run.path, "mirror.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_lock(handle) is False:
        os.close(handle)
        return None
    return MirroredFiles(handle)
