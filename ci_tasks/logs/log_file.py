"""What `--log FILE|-` names: a saved log, a stream, the zip of a run; plain, gzipped or in UTF-16. Never in memory.

GitHub's zip of a run's logs has, and nothing of it is unpacked to disk:

    0_cpu-unittest.txt               the log of a job
    cpu-unittest/1_Set up job.txt    one step of it; read in the order of their numbers where the file above is missing
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import Blocked, UnknownName, UsageError, some
from ci_tasks.logs.job_lines import without_numbers

STANDARD_INPUT = "-"
_HEAD_BYTES = 1 << 13
# Of every command that reads a log, whether it is an argument of it or the value of an option.
_LOG_HINT = "give a saved job log, the zip of a run, or - for what is piped in (`gh run view RUN --log-failed`)"
_RUN_HINT = "`ci-tasks report RUN` says why a run of yours failed; this reads a saved log, or - for what is piped in"
_URL_HINT = "`gh run view RUN --log-failed > FILE` saves the log; `ci-tasks reproduce --url URL` reads it by itself"
_RUN = re.compile(r"last|\d{8}-\d{6}-[\w.-]+")
_PACKED = {
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "rar",
}
_MAX_LINES = 2_000_000  # of any archive, however small it is
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # what PowerShell makes of `gh … > file`
# Control bytes, but for those that programs write to terminals: \a \b \t \n \f \r and escape.
_CONTROL = re.compile(rb"[\x00-\x06\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_BOM = b"\xef\xbb\xbf"  # GitHub begins every log with one, and the file of every step
MAX_LOG_BYTES = 8 << 30  # no log is that long, but a stream may be endless
_CHUNK_BYTES = 1 << 18
_HARMLESS_BYTES = 1 << 28  # may come out of any archive, however small it is
_JOB = re.compile(r"-?(?P<number>\d+)_(?P<job>[^/]+)\.txt")
_STEP = re.compile(r"(?P<job>[^/]+)/-?(?P<number>\d+)_[^/]*\.txt")
_ANY_LOG = re.compile(r".*\.(txt|log)", re.IGNORECASE)
_IGNORED = re.compile(r"(.*/)?(__MACOSX/.*|\.DS_Store)|.*/")  # what macOS adds, and directories
# A name that leads out of the archive, or moves a terminal's cursor, is not GitHub's.
_HOSTILE = re.compile(r"/|\w:|(.*[/\\])?\.\.([/\\]|$)|.*[\x00-\x1f\x7f-\x9f]", re.DOTALL)
# What zipfile raises over damaged bytes.
_ZIP_ERRORS = (BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class JobLog:
    """One job's log. `name` is the job's as the zip has it (GitHub leaves characters out), "" where it is not known.
    `chunks` starts to read it from the beginning; several readers do not disturb each other. It raises UsageError where
    it is damaged."""

    name: str
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class OpenLog:
    """An open file of logs: `name` is for people, `jobs` are the logs in it, at least one. `cut` says why only its
    beginning was read, empty where all of it was."""

    name: str
    jobs: tuple[JobLog, ...]
    cut: str = ""

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
    name = "standard input" if path == STANDARD_INPUT else path
    with _standard_input() if path == STANDARD_INPUT else _open_file(path) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and path != STANDARD_INPUT:
            with read_logs(file, name) as logs:
                yield logs
        else:
            with _copy_of_stream(file, name) as copy, read_logs(copy, name) as logs:
                yield logs


@contextmanager
def read_logs(file: BinaryIO, name: str) -> Iterator[OpenLog]:
    """The logs in an open regular file. Raises UsageError, Blocked."""
    with ExitStack() as copies:
        head, cut = _head(file, name), ""
        if head.startswith(_ZIP):
            yield OpenLog(name, _jobs_in_zip(file, name))
            return
        if head.startswith(_GZIP):
            packed = os.fstat(file.fileno()).st_size
            begun = _Beginning(_gunzipped(file, name), _max_unpacked_bytes(packed), max(_MAX_LINES, packed))
            file = copies.enter_context(temporary_copy(begun, name))
            head = _head(file, name)
            if begun.is_cut:
                unpacked = os.fstat(file.fileno()).st_size
                cut = f"{name}: only the first {unpacked >> 20} MiB were read: no log shrinks to {packed >> 10} KiB"
        if head.startswith(_UTF16):
            file = copies.enter_context(temporary_copy(_utf16_as_utf8(file), name))
        else:
            _refuse_binary(head, name)
        yield OpenLog(name, (JobLog("", lambda: without_numbers(_file_chunks(file))),), cut)


def temporary_copy(chunks: Iterable[bytes], name: str) -> BinaryIO:
    """A file with the bytes of `chunks`. It has no path, so nothing is left behind even after SIGKILL.

    Raises Blocked where the disk is full, UsageError for more than `MAX_LOG_BYTES` bytes.
    """
    try:
        file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise _disk_error(error) from None
    try:
        for chunk in chunks:
            if file.tell() + len(chunk) > MAX_LOG_BYTES:
                raise _too_large(name, MAX_LOG_BYTES)
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
    with gzip.GzipFile(fileobj=file) as unpacked:
        try:
            yield from iter(partial(unpacked.read, _CHUNK_BYTES), b"")
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(name, error) from error


class _Beginning:
    """The chunks until so many bytes or lines have come. `is_cut`: there were more."""

    def __init__(self, chunks: Iterator[bytes], max_bytes: int, max_lines: int) -> None:
        self.is_cut = False
        self._chunks, self._bytes_left, self._lines_left = chunks, max_bytes, max_lines

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if self._bytes_left <= 0 or self._lines_left <= 0:
                self.is_cut = True
                return
            self._bytes_left -= len(chunk)
            self._lines_left -= chunk.count(b"\n")
            yield chunk


def _utf16_as_utf8(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    text = io.TextIOWrapper(file, "utf-16", errors="replace", newline="")
    yield from iter(lambda: text.read(_CHUNK_BYTES).encode(), b"")
    text.detach()


def _head(file: BinaryIO, name: str) -> bytes:
    """Raises UsageError where there is nothing, or nothing can be read."""
    try:
        head = os.pread(file.fileno(), _HEAD_BYTES, 0)
    except OSError as error:
        raise _unreadable(name, error) from None
    if len(head) < _HEAD_BYTES and not head.strip(b"\xef\xbb\xbf\r\n\t "):
        raise UsageError(f"{name!r} is empty: nothing to triage", hint=_LOG_HINT)
    return head


def _refuse_binary(head: bytes, name: str) -> None:
    packer = next((packer for magic, packer in _PACKED.items() if head.startswith(magic)), None)
    if packer:
        raise UsageError(f"{name!r} is packed with {packer}", hint="unpack it; text, gzip and zip are read")
    # By lines: a log with a tensor's bytes in it, or a line in UTF-16, is a log still.
    lines = head.split(b"\n")
    if sum(bool(_CONTROL.search(line)) for line in lines) * 2 > len(lines):
        raise UsageError(f"{name!r} is binary, no log", hint="text, gzip and the zip of a run's logs are read")


def _copy_of_stream(stream: BinaryIO, name: str) -> BinaryIO:
    """A stream on disk, once its beginning looks like a log: there are endless streams."""
    try:
        head = stream.read(_HEAD_BYTES)
        if not head.startswith((*_ZIP, _GZIP, *_UTF16)):
            _refuse_binary(head, name)
        return temporary_copy(chain([head], iter(partial(stream.read, _CHUNK_BYTES), b"")), name)
    except OSError as error:
        raise _unreadable(name, error) from None


def _standard_input() -> BinaryIO:
    """Raises UsageError where nothing is piped in: the command would wait for ever."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no standard input to read a log from", hint=_LOG_HINT)
    if sys.stdin.isatty():
        raise UsageError("nothing is piped in: standard input is the terminal", hint=_LOG_HINT)
    return open(os.dup(sys.stdin.fileno()), "rb")


def _open_file(path: str) -> BinaryIO:
    """Raises UsageError."""
    try:
        file = open(os.path.expanduser(path), "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise UsageError(f"no such file: {path!r}", hint=_RUN_HINT if _RUN.fullmatch(path) else _LOG_HINT) from None
    except IsADirectoryError:
        raise UsageError(f"{path!r} is a directory", hint=_logs_in_directory(path)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if os.isatty(file.fileno()):
        file.close()
        raise UsageError(f"{path!r} is a terminal", hint=_LOG_HINT)
    return file


def _jobs_in_zip(file: BinaryIO, name: str) -> tuple[JobLog, ...]:
    """The jobs of a zip, which can be read while `file` is open.

    Raises UsageError for what is no zip of logs: damaged, encrypted, a zip bomb, with hostile names.
    """
    try:
        archive = ZipFile(file)
    except _ZIP_ERRORS as error:
        raise _damaged(name, error) from None
    archive.filename = name  # for messages
    members = {info.filename: info for info in archive.infolist() if not _IGNORED.fullmatch(info.filename)}
    _check_zip(archive, name, _max_unpacked_bytes(os.fstat(file.fileno()).st_size))
    jobs = tuple(
        JobLog(job, partial(_job_in_zip, archive, infos, f"{name}: {job}")) for job, infos in _members_by_job(members)
    )
    if not jobs:
        what = some([*members], 5) or "nothing"
        raise UsageError(f"{name!r} is a zip without a log; it contains {what}", hint="pass the zip of a run's logs")
    return jobs


def _job_in_zip(archive: ZipFile, members: Sequence[ZipInfo], name: str) -> Iterator[bytes]:
    return without_numbers(_zipped_chunks(archive, members, name))


def _zipped_chunks(archive: ZipFile, members: Sequence[ZipInfo], name: str) -> Iterator[bytes]:
    head = True
    try:
        for info in members:
            with archive.open(info) as member:
                chunk = member.read(_CHUNK_BYTES).removeprefix(_BOM)
                if head:
                    _refuse_binary(chunk[:_HEAD_BYTES], name)
                    head = False
                while chunk:
                    yield chunk
                    chunk = member.read(_CHUNK_BYTES)
    except _ZIP_ERRORS as error:
        raise _damaged(str(archive.filename), error) from error


def _check_zip(archive: ZipFile, name: str, limit: int) -> None:
    unpack = "if you trust it, unpack it yourself and pass the failed job's log"
    for info in archive.infolist():
        if _HOSTILE.match(info.orig_filename):
            member = info.orig_filename[:200]
            raise UsageError(f"{name!r} has a member named {member!r}, which GitHub would not write", hint=unpack)
        if info.flag_bits & 1:
            raise UsageError(f"{name!r} is encrypted, which GitHub's are not", hint=unpack)
    # Reading a member ends at the size that is declared here.
    if sum(info.file_size for info in archive.infolist()) > limit:
        raise _too_large(name, limit)


def _members_by_job(members: Mapping[str, ZipInfo]) -> list[tuple[str, list[ZipInfo]]]:
    """Each job's name and its members in order; without GitHub's names every log is a job of its own."""
    if any(path.count("/") == 2 for path in members) and len({path.partition("/")[0] for path in members}) == 1:
        # The unpacked directory was packed again.
        return _members_by_job({path.partition("/")[2]: info for path, info in members.items()})
    whole = _matching(_JOB, members)
    steps: dict[str, list[ZipInfo]] = {}
    for job, info in _matching(_STEP, members):
        steps.setdefault(job, []).append(info)
    jobs = [(job, [info]) for job, info in whole]
    jobs += [(job, infos) for job, infos in steps.items() if job not in {job for job, _ in whole}]
    return jobs or [(path, [info]) for path, info in members.items() if _ANY_LOG.fullmatch(path)]


def _matching(pattern: re.Pattern[str], members: Mapping[str, ZipInfo]) -> list[tuple[str, ZipInfo]]:
    matches = [(match, info) for path, info in members.items() if (match := pattern.fullmatch(path))]
    matches.sort(key=lambda pair: int(pair[0]["number"]))
    return [(match["job"], info) for match, info in matches]


def _max_unpacked_bytes(packed: int) -> int:
    """How many bytes may come out of `packed` ones: no log shrinks to a 100th, an archive that was made to does."""
    return min(MAX_LOG_BYTES, max(_HARMLESS_BYTES, 100 * packed))


def _damaged(name: str, error: Exception) -> UsageError:
    return UsageError(
        f"{name!r} is damaged or incomplete: {error}",
        hint="download it again, or save the job's log as text: gh run view RUN --log-failed > FILE",
    )


def _too_large(name: str, limit: int) -> UsageError:
    return UsageError(
        f"{name!r} has more than {limit >> 20} MiB, so it is no log",
        hint="pass the failed job's log alone",
    )


def _disk_error(error: OSError) -> Blocked:
    return Blocked(
        f"the log cannot be stored on disk while it is read: {error.strerror}",
        hint="set TMPDIR to another directory for temporary files",
    )


def without_secrets(url: str) -> str:
    """`url` without its login and its query."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0][:300]


def _unreadable(name: str, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error)
    return UsageError(f"{name!r} cannot be read: {reason}", hint=_LOG_HINT)


def _logs_in_directory(directory: str) -> str:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith((".txt", ".log", ".zip")))[:5]
    except OSError:
        names = []
    return f"name a log in it: {', '.join(names)}" if names else _LOG_HINT
