"""What `--log FILE|-` names: a saved log, a stream, the zip of a run, packed with gzip or not. Never in memory."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import BinaryIO

from ci_tasks.errors import UnknownName, UsageError
from ci_tasks.forge import archive, spool, unpacked
from ci_tasks.forge.address import shown
from ci_tasks.forge.archive import Opener
from ci_tasks.forge.lines import bounded
from ci_tasks.forge.spool import Spool

STANDARD_INPUT = "-"
_HEAD = 1 << 13
_PIPE_IT = "gh run view RUN --log-failed | … --log -, or --log FILE with a log that was saved"
_MAGIC = {
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "rar",
}
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP = b"\x1f\x8b"
_WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # what PowerShell makes of `gh … > file`
# Control bytes, but for those that programs write to terminals: \a \b \t \n \f \r and escape.
_NO_TEXT = re.compile(rb"[\x00-\x06\x0b\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True)
class JobLog:
    """One job's log. `name` is the job's as the zip has it (GitHub leaves characters out), "" where nobody says."""

    name: str
    opener: Opener

    def open(self) -> io.BufferedReader:
        """Its bytes from the beginning; several readers do not disturb each other. Reading raises UsageError."""
        return self.opener()

    def __iter__(self) -> Iterator[bytes]:
        """Its lines as `lines.bounded` gives them; each time from the beginning. Raises UsageError."""
        with self.open() as source:
            yield from bounded(source)


class LogText:
    """A log for as long as the `with` lasts: `name` is for people, `jobs` are the logs in it, never none."""

    def __init__(self, name: str, jobs: tuple[JobLog, ...], kept: Spool) -> None:
        self.name, self.jobs, self._kept = name, jobs, kept

    def job(self, name: str) -> JobLog:
        """Raises UnknownName."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise UnknownName("job", name, [job.name for job in self.jobs], where=self.name)

    def __iter__(self) -> Iterator[bytes]:
        """The lines of its only log. Raises UsageError where there are several."""
        if len(self.jobs) > 1:
            names = ", ".join(job.name for job in self.jobs)
            raise UsageError(f"{self.name!r} holds the logs of {len(self.jobs)} jobs", hint=f"name one: {names}")
        return iter(self.jobs[0])

    def close(self) -> None:
        self._kept.close()

    def __enter__(self) -> LogText:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_log(what: str) -> LogText:
    """The log in the file `what`, or on standard input for "-".

    Raises UsageError for what is no log, with the next step; Blocked where a stream finds no room on disk. What shows
    only further in, such as a gzip without its end, is raised while reading.
    """
    if what == STANDARD_INPUT:
        return _of_stream(_standard_input(), "standard input")
    if re.match(r"https?://", what):
        raise UsageError(f"{shown(what)!r} is an address", hint="--url URL reads the log at an address")
    source, is_file = _opened(what)
    return of_spool(Spool(source), what) if is_file else _of_stream(source, what)


def of_spool(kept: Spool, name: str) -> LogText:
    """The log, or logs, in `kept`, which is closed with it. Raises UsageError."""
    try:
        return LogText(name, _jobs(kept, name), kept)
    except BaseException:
        kept.close()
        raise


def _jobs(kept: Spool, name: str) -> tuple[JobLog, ...]:
    head = _head_of(kept.open, name)
    if head.startswith(_ZIP):
        found = archive.jobs_of(kept, name)
        return tuple(JobLog(job, partial(_text_of, opener, f"{name}: {job}")) for job, opener in found)
    opener: Opener = kept.open
    if head.startswith(_GZIP):
        opener = partial(_gunzipped, kept.open, name, unpacked.most(kept.size))
        head = _head_of(opener, name)
    wide = _WIDE.get(head[:2])
    if wide:
        return (JobLog("", partial(_as_utf8, opener, name, wide)),)
    _refuse_binary(head, name)
    return (JobLog("", opener),)


def _head_of(opener: Opener, name: str) -> bytes:
    """Raises UsageError where there is nothing, or nothing can be read."""
    try:
        with opener() as source:
            head = source.read(_HEAD)
    except OSError as error:
        raise _unreadable(name, error) from None
    if len(head) < _HEAD and not head.strip(b"\xef\xbb\xbf\r\n\t "):
        raise UsageError(f"{name!r} is empty: nothing to triage", hint=_PIPE_IT)
    return head


def _text_of(opener: Opener, name: str) -> io.BufferedReader:
    """A job's log in a zip, which may be anything. Raises UsageError."""
    source = opener()
    _refuse_binary(source.peek(_HEAD)[:_HEAD], name)
    return source


def _gunzipped(opener: Opener, name: str, limit: int) -> io.BufferedReader:
    import gzip

    return unpacked.reader(gzip.GzipFile(fileobj=opener()), name, limit)


def _as_utf8(opener: Opener, name: str, encoding: str) -> io.BufferedReader:
    return unpacked.reader(opener(), name, change=unpacked.utf8_from(encoding))


def _refuse_binary(head: bytes, name: str) -> None:
    packed = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if packed:
        raise UsageError(f"{name!r} is packed with {packed}", hint="unpack it; text, gzip and zip are read")
    # By lines: a log with a tensor's bytes in it, or a line in UTF-16, is a log still.
    lines = head.split(b"\n")
    if sum(bool(_NO_TEXT.search(line)) for line in lines) * 2 > len(lines):
        raise UsageError(f"{name!r} is binary, no log", hint="text, gzip and the zip of a run's logs are read")


def _of_stream(source: BinaryIO, name: str) -> LogText:
    """Keeps a stream, once its beginning looks like a log: there are streams without an end."""
    with source:
        head = _full_read(source, _HEAD, name)
        if not head.startswith((*_ZIP, _GZIP, *_WIDE)):
            _refuse_binary(head, name)
        waiting = [head]
        kept = spool.keep(lambda size: waiting.pop() if waiting else _full_read(source, size, name))
    return of_spool(kept, name)


def _full_read(source: BinaryIO, size: int, name: str) -> bytes:
    try:
        return source.read(size)
    except OSError as error:
        raise _unreadable(name, error) from None


def _standard_input() -> BinaryIO:
    """Raises UsageError where nobody pipes anything in: the command would wait for ever."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no standard input to read a log from", hint=_PIPE_IT)
    if sys.stdin.isatty():
        raise UsageError("nothing is piped in: standard input is the terminal", hint=_PIPE_IT)
    return open(os.dup(sys.stdin.fileno()), "rb")


def _opened(path: str) -> tuple[BinaryIO, bool]:
    """The file, and whether it is a regular one, which can be read again. Raises UsageError."""
    try:
        source = open(os.path.expanduser(path), "rb")  # noqa: SIM115 - its Spool or its stream closes it
    except FileNotFoundError:
        raise UsageError(f"no such file: {path!r}", hint=_PIPE_IT) from None
    except IsADirectoryError:
        raise UsageError(f"{path!r} is a directory", hint=_inside(path)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if os.isatty(source.fileno()):
        source.close()
        raise UsageError(f"{path!r} is a terminal", hint=_PIPE_IT)
    return source, stat.S_ISREG(os.fstat(source.fileno()).st_mode)


def _unreadable(name: str, error: Exception) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(f"{name!r} cannot be read: {why}", hint=_PIPE_IT)


def _inside(directory: str) -> str:
    try:
        texts = sorted(name for name in os.listdir(directory) if name.endswith((".txt", ".log", ".zip")))[:5]
    except OSError:
        texts = []
    return f"name a log in it: {', '.join(texts)}" if texts else _PIPE_IT
