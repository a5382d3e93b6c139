"""The zip of a run's logs, as GitHub offers it for download: which members are which job's log. Nothing is unpacked
to disk.

0_cpu-unittest.txt               the log of a job
cpu-unittest/1_Set up job.txt    one step of it; read in the order of their numbers where the file above is missing
"""

from __future__ import annotations

import lzma
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, some
from ci_tasks.features.ci_logs.sources.bounded_lines import BOM
from ci_tasks.features.ci_logs.sources.temporary_copy import MAX_LOG_BYTES, too_large

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
class ZippedJob:
    """A job of the zip and the members with its log, in order."""

    name: str
    archive: ZipFile
    members: tuple[ZipInfo, ...]

    def chunks(self) -> Iterator[bytes]:
        """Its log. Raises UsageError where the zip is damaged."""
        try:
            for info in self.members:
                with self.archive.open(info) as member:
                    yield member.read(_CHUNK_BYTES).removeprefix(BOM)
                    while chunk := member.read(_CHUNK_BYTES):
                        yield chunk
        except _ZIP_ERRORS as error:
            raise damaged(str(self.archive.filename), error) from error


def jobs_in(file: BinaryIO, name: str) -> list[ZippedJob]:
    """The jobs of a zip, which can be read while `file` is open.

    Raises UsageError for what is no zip of logs: damaged, encrypted, a zip bomb, with hostile names.
    """
    try:
        archive = ZipFile(file)
    except _ZIP_ERRORS as error:
        raise damaged(name, error) from None
    archive.filename = name  # for messages
    members = {info.filename: info for info in archive.infolist() if not _IGNORED.fullmatch(info.filename)}
    _check(archive, name, max_unpacked_bytes(os.fstat(file.fileno()).st_size))
    jobs = [ZippedJob(job, archive, tuple(infos)) for job, infos in _members_by_job(members)]
    if not jobs:
        what = some([*members], 5) or "nothing"
        raise UsageError(f"{name!r} is a zip without a log; it contains {what}", hint="pass the zip of a run's logs")
    return jobs


def max_unpacked_bytes(packed: int) -> int:
    """How many bytes may come out of `packed` ones: no log shrinks to a 100th, an archive that was made to does."""
    return min(MAX_LOG_BYTES, max(_HARMLESS_BYTES, 100 * packed))


def damaged(name: str, error: Exception) -> UsageError:
    return UsageError(
        f"{name!r} is damaged or incomplete: {error}",
        hint="download it again, or save the job's log as text: gh run view RUN --log-failed > FILE",
    )


def _check(archive: ZipFile, name: str, limit: int) -> None:
    unpack = "if you trust it, unpack it yourself and pass the failed job's log"
    for info in archive.infolist():
        if _HOSTILE.match(info.orig_filename):
            member = info.orig_filename[:200]
            raise UsageError(f"{name!r} has a member named {member!r}, which GitHub would not write", hint=unpack)
        if info.flag_bits & 1:
            raise UsageError(f"{name!r} is encrypted, which GitHub's are not", hint=unpack)
    # Reading a member ends at the size that is declared here.
    if sum(info.file_size for info in archive.infolist()) > limit:
        raise too_large(name, limit)


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
