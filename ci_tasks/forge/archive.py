"""The zip that GitHub offers for download: which members are which job's log. Nothing of it is unpacked to disk.

0_cpu-unittest.txt               all of a job
cpu-unittest/1_Set up job.txt    one step of it; read in the order of their numbers where the file above is missing
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from ci_tasks.errors import UsageError
from ci_tasks.forge.lines import BOM
from ci_tasks.forge.spool import Spool
from ci_tasks.forge.unpacked import AGAIN, damaged, most, reader, too_much

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

_MOST_MEMBERS = 1 << 16
_JOB = re.compile(r"-?(?P<number>\d+)_(?P<job>[^/]+)\.txt")
_STEP = re.compile(r"(?P<job>[^/]+)/-?(?P<number>\d+)_[^/]*\.txt")
_ANY_LOG = re.compile(r".*\.(txt|log)", re.IGNORECASE)
_NOT_OURS = re.compile(r"(.*/)?(__MACOSX/.*|\.DS_Store)|.*/")  # what a Mac adds, and directories
# A name that leads out of the archive, or moves a terminal's cursor, is not GitHub's.
_HOSTILE = re.compile(r"/|\w:|(.*[/\\])?\.\.([/\\]|$)|.*[\x00-\x1f\x7f-\x9f]", re.DOTALL)

Opener = Callable[[], io.BufferedReader]


def jobs_of(spool: Spool, name: str) -> list[tuple[str, Opener]]:
    """Each job's name, with what opens its log for as long as `spool` is open.

    Raises UsageError for what is no zip of logs: damaged, encrypted, a bomb, with hostile names.
    """
    archive = _opened(spool, name)
    members = {info.filename: info for info in _checked(archive.infolist(), name, most(spool.size))}
    found: list[tuple[str, Opener]] = [(job, partial(_read, archive, name, infos)) for job, infos in _by_job(members)]
    if not found:
        held = _some(members)
        raise UsageError(f"{name!r} is a zip without a log; it has {held}", hint="give the zip of a run's logs")
    return found


def _opened(spool: Spool, name: str) -> ZipFile:
    import zipfile

    try:
        return zipfile.ZipFile(spool.open())
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, zlib.error) as error:
        raise damaged(name, error) from None


def _checked(infos: list[ZipInfo], name: str, limit: int) -> Iterator[ZipInfo]:
    if len(infos) > _MOST_MEMBERS:
        raise UsageError(f"{name!r} has {len(infos)} members, so it is no zip of logs", hint=AGAIN)
    for info in infos:
        if _HOSTILE.match(info.orig_filename):
            raise UsageError(
                f"{name!r} has a member named {info.orig_filename[:200]!r}, which GitHub would not write",
                hint="if you trust it, unpack it yourself and give the failed job's log",
            )
        if info.flag_bits & 1:
            raise UsageError(
                f"{name!r} is encrypted, which GitHub's are not",
                hint="unpack it yourself and give the failed job's log",
            )
        if not _NOT_OURS.fullmatch(info.filename):
            yield info
    # A reader of a member ends at the size that is declared here.
    if sum(info.file_size for info in infos) > limit:
        raise too_much(name, limit)


def _by_job(members: dict[str, ZipInfo]) -> list[tuple[str, list[ZipInfo]]]:
    """Each job's name and its members in order; without GitHub's names every log is a job of its own."""
    shorter = {path.partition("/")[2]: info for path, info in members.items()}
    if any(path.count("/") == 2 for path in members) and len({path.partition("/")[0] for path in members}) == 1:
        return _by_job(shorter)  # somebody packed the unpacked directory again
    whole = _matching(_JOB, members)
    steps: dict[str, list[ZipInfo]] = {}
    for job, info in _matching(_STEP, members):
        steps.setdefault(job, []).append(info)
    found = [(job, [info]) for job, info in whole]
    found += [(job, infos) for job, infos in steps.items() if job not in {job for job, _ in whole}]
    return found or [(path, [info]) for path, info in members.items() if _ANY_LOG.fullmatch(path)]


def _matching(pattern: re.Pattern[str], members: dict[str, ZipInfo]) -> list[tuple[str, ZipInfo]]:
    found = [(match, info) for path, info in members.items() if (match := pattern.fullmatch(path))]
    found.sort(key=lambda pair: int(pair[0]["number"]))
    return [(match["job"], info) for match, info in found]


def _read(archive: ZipFile, name: str, infos: list[ZipInfo]) -> io.BufferedReader:
    return reader(_Chain(archive, infos), name)


class _Chain:
    """Members of a zip, one after the other."""

    def __init__(self, archive: ZipFile, infos: list[ZipInfo]) -> None:
        self._archive, self._waiting = archive, list(infos)
        self._current: BinaryIO = io.BytesIO()

    def read(self, size: int, /) -> bytes:
        chunk = self._current.read(size)
        while not chunk and self._waiting:
            self._current.close()
            self._current = self._archive.open(self._waiting.pop(0))  # type: ignore[assignment]  # an IO[bytes]
            chunk = self._current.read(size).removeprefix(BOM)
        return chunk

    def close(self) -> None:
        self._current.close()


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "") or "nothing in it"
