"""What `--log FILE|-` names: a saved log, a stream, the zip of a run; plain or gzipped. Never in memory.

A zip of GitHub has a file for each job, such as `0_cpu-unittest.txt`, and the same step by step, which is passed over.
Nothing of it is unpacked to disk.
"""

from __future__ import annotations

import codecs
import gzip
import lzma
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import BinaryIO, TypeVar
from zipfile import BadZipFile, ZipFile, ZipInfo

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, UnknownName, UsageError, printable, some

STANDARD_INPUT = "-"
MAX_LOG_BYTES = 8 << 30  # no log is that long, but a stream may be endless
_HARMLESS_BYTES = 1 << 28  # may come out of any archive, however small it is
MOST_JOBS = 10
_HEAD_BYTES, _CHUNK_BYTES = 1 << 13, 1 << 18
_LOG_HINT = (
    "give a saved job log, the zip of a run, or - for standard input (`gh run view RUN --log`); "
    "`ci-tasks report RUN` says why a run of yours failed"
)
_URL_HINT = "`gh run view RUN --log > FILE` saves the log; `--url URL` reads it by itself"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as Windows PowerShell's `>` writes
# Control bytes, except the ones that programs write to terminals: \a \b \t \n \f \r and escape.
_CONTROL = re.compile(rb"[\x00-\x06\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_JOB = re.compile(r"-?(\d+)_([^/]+)\.txt")
_STEP = re.compile(r"[^/]+/-?\d+_[^/]*\.txt")
_ANY_LOG = re.compile(r"(?!__MACOSX/).*\.(txt|log)", re.IGNORECASE | re.DOTALL)
T = TypeVar("T")
# What zipfile and gzip raise over damaged, encrypted and oversized bytes.
_ARCHIVE_ERRORS = (BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class JobLog:
    """One job's log. `name` is the job's as the zip has it (GitHub leaves characters out), "" if it is not known.
    `chunks` starts to read it from the beginning; several readers do not disturb each other. It raises UsageError if it
    is damaged."""

    name: str
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class OpenLog:
    """An open file of logs: `name` is for people, `jobs` are the logs in it, at least one."""

    name: str
    jobs: tuple[JobLog, ...]

    def job(self, name: str) -> JobLog:
        for job in self.jobs:
            if job.name == name:
                return job
        raise UnknownName("job", name, [job.name for job in self.jobs], where=self.name)


@contextmanager
def open_log(path: str) -> Iterator[OpenLog]:
    """The log in the file `path`, or on standard input for "-".

    Raises UsageError for what is no log, with the next step; Blocked if a stream does not fit on the disk.
    """
    if re.match(r"https?://", path):
        raise UsageError(f"{without_secrets(path)!r} is an address", hint=_URL_HINT)
    name = "standard input" if path == STANDARD_INPUT else path
    with ExitStack() as stack:
        with _readable(name):
            file = stack.enter_context(_opened(path))
            if path == STANDARD_INPUT or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                head = file.read(_HEAD_BYTES)
                if not head.startswith((*_ZIP, _GZIP, *_UTF16)):  # there are endless streams
                    _refuse_binary(head, name)
                chunks = chain([head], iter(partial(file.read, _CHUNK_BYTES), b""))
                file = stack.enter_context(temporary_copy(chunks, name))
        yield read_logs(file, name, stack)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Raises UsageError if the file or archive `name` cannot be read."""
    try:
        yield
    except _ARCHIVE_ERRORS as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{name!r} cannot be read: {why}", hint=_LOG_HINT) from error


def read_logs(file: BinaryIO, name: str, stack: ExitStack) -> OpenLog:
    """The logs in an open regular file, until `stack` closes what was unpacked. Raises UsageError, Blocked."""
    head = _head(file, name)
    if head.startswith(_ZIP):
        return OpenLog(name, _jobs_in_zip(file, name))
    if head.startswith(_GZIP):
        file.seek(0)
        unpacked, limit = stack.enter_context(gzip.GzipFile(fileobj=file)), _max_unpacked_bytes(file)
        with _readable(name):
            chunks = iter(partial(unpacked.read, _CHUNK_BYTES), b"")
            file = stack.enter_context(temporary_copy(chunks, name, limit))
        head = _head(file, name)
    if head.startswith(_UTF16):
        decode = codecs.getincrementaldecoder("utf-16")("replace").decode
        file = stack.enter_context(temporary_copy((decode(chunk).encode() for chunk in _file_chunks(file)), name))
        head = _head(file, name)
    _refuse_binary(head, name)
    return OpenLog(name, (JobLog("", lambda: _file_chunks(file)),))


def temporary_copy(chunks: Iterable[bytes], name: str, limit: int = MAX_LOG_BYTES) -> BinaryIO:
    """A file with the bytes of `chunks`. It has no path, so nothing is left behind even after SIGKILL.

    Raises Blocked if the disk is full, UsageError for more than `limit` bytes.
    """
    with _disk():
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        for chunk in chunks:
            if file.tell() + len(chunk) > limit:
                raise _too_large(name, limit)
            with _disk():
                file.write(chunk)
                file.flush()  # a full disk may show only here
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "set TMPDIR to another directory for temporary files"
        message = f"the log cannot be stored on disk while it is read: {error.strerror}"
        raise Blocked(message, hint=hint) from None


def _file_chunks(file: BinaryIO) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(file.fileno(), _CHUNK_BYTES, offset):
        yield chunk
        offset += len(chunk)


def _head(file: BinaryIO, name: str) -> bytes:
    """Raises UsageError if there is nothing, or nothing can be read."""
    with _readable(name):
        head = os.pread(file.fileno(), _HEAD_BYTES, 0)
    if len(head) < _HEAD_BYTES and not head.strip(b"\xef\xbb\xbf\r\n\t "):
        raise UsageError(f"{name!r} is empty: nothing to triage", hint=_LOG_HINT)
    return head


def _refuse_binary(head: bytes, name: str) -> None:
    # By lines: a log with a tensor's bytes in it is a log still.
    lines = head.split(b"\n")
    if sum(bool(_CONTROL.search(line)) for line in lines) * 2 > len(lines):
        raise UsageError(f"{name!r} is binary, not a log", hint="save it as text; gzip and a zip of logs are read too")


def _opened(path: str) -> BinaryIO:
    """Raises UsageError if standard input is a terminal: the command would wait forever. Or OSError, ValueError."""
    if path != STANDARD_INPUT:
        return open(os.path.expanduser(path), "rb")
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise UsageError("standard input is a terminal", hint=_LOG_HINT)
    return open(os.dup(sys.stdin.fileno()), "rb")


def _jobs_in_zip(file: BinaryIO, name: str) -> tuple[JobLog, ...]:
    """The jobs of a zip, which can be read while `file` is open, in the order of their numbers; without GitHub's names
    every log is a job of its own. Raises UsageError for what is no zip of logs."""
    with _readable(name):
        archive = ZipFile(file)
    members, limit = archive.infolist(), _max_unpacked_bytes(file)
    if sum(info.file_size for info in members) > limit:  # reading a member ends at the size that is declared here
        raise _too_large(name, limit)
    named = [(int(match[1]), match[2], info) for info in members if (match := _JOB.fullmatch(info.filename))]
    jobs = [(job, info) for _, job, info in sorted(named, key=lambda one: one[0])]
    jobs = jobs or [(info.filename, info) for info in members if _ANY_LOG.fullmatch(info.filename)]
    jobs = [(job, info) for job, info in jobs if not _STEP.fullmatch(job)]  # a part of a job is none
    if not jobs:
        what = some([info.filename for info in members], 5) or "nothing"
        raise UsageError(f"{name!r} is a zip without a log; it contains {what}", hint="pass the zip of a run's logs")
    return tuple(JobLog(printable(job), partial(_zipped_chunks, archive, info, f"{name}: {job}")) for job, info in jobs)


def _zipped_chunks(archive: ZipFile, info: ZipInfo, name: str) -> Iterator[bytes]:
    with _readable(name), archive.open(info) as member:
        chunk = member.read(_CHUNK_BYTES)
        _refuse_binary(chunk[:_HEAD_BYTES], name)
        while chunk:
            yield chunk
            chunk = member.read(_CHUNK_BYTES)


def _max_unpacked_bytes(packed: BinaryIO) -> int:
    """How many bytes may come out of a file: no log shrinks to a 100th, an archive that was made to does."""
    return min(MAX_LOG_BYTES, max(_HARMLESS_BYTES, 100 * os.fstat(packed.fileno()).st_size))


def _too_large(name: str, limit: int) -> UsageError:
    return UsageError(f"{name!r} has more than {limit >> 20} MiB, so it is not a log", hint="pass the job's log alone")


def first_jobs(failed: Sequence[T], place: str) -> Sequence[T]:
    """The jobs that are read: a log is read once for each of its jobs, and a matrix may have a thousand."""
    if len(failed) > MOST_JOBS:
        print(f"{len(failed)} jobs failed in {place}: the first {MOST_JOBS} are read", file=sys.stderr)
    return failed[:MOST_JOBS]


def without_secrets(url: str) -> str:
    """`url` without its login and its query."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0][:300]
