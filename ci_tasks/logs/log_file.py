"""What `--log FILE|-` names: a saved log, a stream, the zip of a run; plain or gzipped. Never in memory.

GitHub's zip of a run's logs has, and nothing of it is unpacked to disk:

    0_cpu-unittest.txt               the log of a job
    cpu-unittest/1_Set up job.txt    one step of it; read in the order of their numbers where the file above is missing
"""

from __future__ import annotations

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
# Of every command that reads a log, whether it is an argument of it or the value of an option.
_LOG_HINT = "give a saved job log, the zip of a run, or - for what is piped in (`gh run view RUN --log`)"
_RUN_HINT = "`ci-tasks report RUN` says why a run of yours failed; this reads a saved log, or - for what is piped in"
_URL_HINT = "`gh run view RUN --log > FILE` saves the log; `ci-tasks reproduce --url URL` reads it by itself"
_RUN = re.compile(r"last|\d{8}-\d{6}-[\w.-]+")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP = b"\x1f\x8b"
# Control bytes, but for those that programs write to terminals: \a \b \t \n \f \r and escape.
_CONTROL = re.compile(rb"[\x00-\x06\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_BOM = b"\xef\xbb\xbf"  # GitHub begins every log with one, and the file of every step
_JOB = re.compile(r"-?(?P<number>\d+)_(?P<job>[^/]+)\.txt")
_STEP = re.compile(r"(?P<job>[^/]+)/-?(?P<number>\d+)_[^/]*\.txt")
_ANY_LOG = re.compile(r"(?!__MACOSX/).*\.(txt|log)", re.IGNORECASE | re.DOTALL)
T = TypeVar("T")
_SAVE_HINT = "download it again, or save the job's log as text: gh run view RUN --log > FILE"
# What zipfile and gzip raise over damaged, encrypted and oversized bytes.
_ARCHIVE_ERRORS = (BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class JobLog:
    """One job's log. `name` is the job's as the zip has it (GitHub leaves characters out), "" where it is not known.
    `chunks` starts to read it from the beginning; several readers do not disturb each other. It raises UsageError where
    it is damaged."""

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

    Raises UsageError for what is no log, with the next step; Blocked where a stream does not fit on the disk.
    """
    if re.match(r"https?://", path):
        raise UsageError(f"{without_secrets(path)!r} is an address", hint=_URL_HINT)
    with ExitStack() as stack:
        if path == STANDARD_INPUT:
            name, file = "standard input", stack.enter_context(_standard_input())
        else:
            name, file = path, stack.enter_context(_open_file(path))
        if path == STANDARD_INPUT or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            with _readable(name):
                head = file.read(_HEAD_BYTES)
                if not head.startswith((*_ZIP, _GZIP)):  # there are endless streams
                    _refuse_binary(head, name)
                chunks = chain([head], iter(partial(file.read, _CHUNK_BYTES), b""))
                file = stack.enter_context(temporary_copy(chunks, name))
        yield stack.enter_context(read_logs(file, name))


@contextmanager
def _readable(name: str, hint: str = _LOG_HINT, what: str = "cannot be read") -> Iterator[None]:
    """Raises UsageError where the file or archive `name` cannot be read."""
    try:
        yield
    except _ARCHIVE_ERRORS as error:
        raise UsageError(f"{name!r} {what}: {getattr(error, 'strerror', None) or error}", hint=hint) from error


_unpacked = partial(_readable, hint=_SAVE_HINT, what="is damaged, encrypted or incomplete")


@contextmanager
def read_logs(file: BinaryIO, name: str) -> Iterator[OpenLog]:
    """The logs in an open regular file. Raises UsageError, Blocked."""
    with ExitStack() as copies:
        head = _head(file, name)
        if head.startswith(_ZIP):
            yield OpenLog(name, _jobs_in_zip(file, name))
            return
        if head.startswith(_GZIP):
            limit = _max_unpacked_bytes(os.fstat(file.fileno()).st_size)
            file = copies.enter_context(temporary_copy(_gunzipped(file, name), name, limit))
            head = _head(file, name)
        _refuse_binary(head, name)
        yield OpenLog(name, (JobLog("", lambda: _file_chunks(file)),))


def temporary_copy(chunks: Iterable[bytes], name: str, limit: int = MAX_LOG_BYTES) -> BinaryIO:
    """A file with the bytes of `chunks`. It has no path, so nothing is left behind even after SIGKILL.

    Raises Blocked where the disk is full, UsageError for more than `limit` bytes.
    """
    try:
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise _disk_error(error) from None
    try:
        for chunk in chunks:
            if file.tell() + len(chunk) > limit:
                raise _too_large(name, limit)
            write(file, chunk)
    except BaseException:
        file.close()
        raise
    return file


def write(file: BinaryIO, chunk: bytes) -> None:
    """Raises Blocked where the disk is full."""
    try:
        file.write(chunk)
        file.flush()  # a full disk may show only here
    except OSError as error:
        raise _disk_error(error) from None


def _file_chunks(file: BinaryIO) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(file.fileno(), _CHUNK_BYTES, offset):
        yield chunk
        offset += len(chunk)


def _gunzipped(file: BinaryIO, name: str) -> Iterator[bytes]:
    file.seek(0)
    with _unpacked(name), gzip.GzipFile(fileobj=file) as unpacked:
        yield from iter(partial(unpacked.read, _CHUNK_BYTES), b"")


def _head(file: BinaryIO, name: str) -> bytes:
    """Raises UsageError where there is nothing, or nothing can be read."""
    with _readable(name):
        head = os.pread(file.fileno(), _HEAD_BYTES, 0)
    if len(head) < _HEAD_BYTES and not head.strip(b"\xef\xbb\xbf\r\n\t "):
        raise UsageError(f"{name!r} is empty: nothing to triage", hint=_LOG_HINT)
    return head


def _refuse_binary(head: bytes, name: str) -> None:
    # By lines: a log with a tensor's bytes in it is a log still.
    lines = head.split(b"\n")
    if sum(bool(_CONTROL.search(line)) for line in lines) * 2 > len(lines):
        raise UsageError(f"{name!r} is binary, no log", hint="UTF-8 text, gzip and the zip of a run's logs are read")


def _standard_input() -> BinaryIO:
    """Raises UsageError where nothing is piped in: the command would wait for ever."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no standard input to read a log from", hint=_LOG_HINT)
    if sys.stdin.isatty():
        raise UsageError("nothing is piped in: standard input is the terminal", hint=_LOG_HINT)
    return open(os.dup(sys.stdin.fileno()), "rb")


def _open_file(path: str) -> BinaryIO:
    """Raises UsageError."""
    with _readable(path):
        try:
            return open(os.path.expanduser(path), "rb")
        except FileNotFoundError:
            hint = _RUN_HINT if _RUN.fullmatch(path) else _LOG_HINT
            raise UsageError(f"no such file: {path!r}", hint=hint) from None


def _jobs_in_zip(file: BinaryIO, name: str) -> tuple[JobLog, ...]:
    """The jobs of a zip, which can be read while `file` is open: each by its own file, else by those of its steps;
    without GitHub's names every log is a job of its own. Raises UsageError for what is no zip of logs."""
    with _unpacked(name):
        archive = ZipFile(file)
    members = archive.infolist()
    limit = _max_unpacked_bytes(os.fstat(file.fileno()).st_size)
    if sum(info.file_size for info in members) > limit:  # reading a member ends at the size that is declared here
        raise _too_large(name, limit)
    jobs = {job: [info] for job, info in _matching(_JOB, members)}
    steps: dict[str, list[ZipInfo]] = {}
    for job, info in _matching(_STEP, members):
        steps.setdefault(job, []).append(info)
    jobs = {**jobs, **{job: infos for job, infos in steps.items() if job not in jobs}}
    jobs = jobs or {info.filename: [info] for info in members if _ANY_LOG.fullmatch(info.filename)}
    if not jobs:
        what = some([info.filename for info in members], 5) or "nothing"
        raise UsageError(f"{name!r} is a zip without a log; it contains {what}", hint="pass the zip of a run's logs")
    return tuple(
        JobLog(printable(job), partial(_zipped_chunks, archive, infos, f"{name}: {job}")) for job, infos in jobs.items()
    )


def _matching(pattern: re.Pattern[str], members: Sequence[ZipInfo]) -> list[tuple[str, ZipInfo]]:
    matches = [(match, info) for info in members if (match := pattern.fullmatch(info.filename))]
    matches.sort(key=lambda pair: int(pair[0]["number"]))
    return [(match["job"], info) for match, info in matches]


def _zipped_chunks(archive: ZipFile, members: Sequence[ZipInfo], name: str) -> Iterator[bytes]:
    for info in members:
        with _unpacked(name), archive.open(info) as member:
            chunk = member.read(_CHUNK_BYTES).removeprefix(_BOM)
            _refuse_binary(chunk[:_HEAD_BYTES], name)
            while chunk:
                yield chunk
                chunk = member.read(_CHUNK_BYTES)


def _max_unpacked_bytes(packed: int) -> int:
    """How many bytes may come out of `packed` ones: no log shrinks to a 100th, an archive that was made to does."""
    return min(MAX_LOG_BYTES, max(_HARMLESS_BYTES, 100 * packed))


def _too_large(name: str, limit: int) -> UsageError:
    hint = "pass the failed job's log alone"
    return UsageError(f"{name!r} has more than {limit >> 20} MiB, so it is no log", hint=hint)


def _disk_error(error: OSError) -> Blocked:
    hint = "set TMPDIR to another directory for temporary files"
    return Blocked(f"the log cannot be stored on disk while it is read: {error.strerror}", hint=hint)


def first_jobs(failed: Sequence[T], place: str) -> Sequence[T]:
    """Those that are read: a log is read once for each of its jobs, and a matrix may have a thousand."""
    if len(failed) > MOST_JOBS:
        print(f"{len(failed)} jobs failed in {place}: the first {MOST_JOBS} are read", file=sys.stderr)
    return failed[:MOST_JOBS]


def without_secrets(url: str) -> str:
    """`url` without its login and its query."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0][:300]
