"""Masks what leaves the host of a run: the content and the names of its artifacts, and its small files.

A job may write there whatever it likes, so all of it passes here at the end, before it is fetched. An artifact goes
into a fresh directory: one that cannot be read is not sent, and no link of the old one matters. Archives and
compressed files cannot be masked, so those of a run with secrets stay on the host.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from typing import Any, Callable, Iterator, List, Sequence, TypeVar

from . import codec
from .files import open_file, unused_path
from .mask import Masker, mask_text
from .records import LeftOut, LeftOutFile
from .run_directory import SMALL_FILES, RunDir, read_record, write_record

MAX_NAMED = 1000  # left-out files that are named; the others are counted
MAX_SEARCHED = 1 << 32  # bytes of one run; a file with a hole of a terabyte would hold up its end for hours
ARCHIVE = "what is in an archive or compressed cannot be masked"
_CHUNK = 1 << 20
_HEAD = 1 << 13  # bytes in which a binary file has a zero
# tar, gzip, compress, xz, zstd, zip (whole, empty, split), lz4, 7-Zip, RAR, lzip, bzip2 (with content, and without)
_ARCHIVE = re.compile(
    rb"(?s).{257}ustar|\x1f[\x8b\x9d]|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|PK(?:\x03\x04|\x05\x06|\x07\x08)|\x04\x22\x4d\x18"
    rb"|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|LZIP|BZh[1-9](?:1AY&SY|\x17rE8P\x90)"
)
_FIELD = re.compile(r"[a-z_0-9]+\Z")  # of a record; other keys are names of packages

T = TypeVar("T")
StopRequested = Callable[[], bool]


def mask_run(
    run: RunDir, values: Sequence[str], stop_requested: StopRequested = lambda: False, *, has_secrets: bool = True
) -> str:
    """Mask the run's files. Its archives are withheld if it `has_secrets`: a client may know others. Returns where the
    old artifacts are, for the caller to remove; "" if nothing is masked. Raises OSError, also if a stop is requested:
    then the artifacts are as they were."""
    if os.path.islink(run.path):
        raise OSError("%s is a link" % run.path)
    if os.path.islink(run.artifacts):
        os.unlink(run.artifacts)  # what it leads to is no artifact
    if not values:
        return ""
    beside = tempfile.mkdtemp(prefix=".unmasked-", dir=run.path)
    masked = os.path.join(beside, "masked")
    os.mkdir(masked)
    masking = _Masking(values, stop_requested)
    try:
        for name in SMALL_FILES:
            masking.replace(os.path.join(run.path, name), os.path.join(beside, os.path.basename(name)))
        masking.copy_directory(run.artifacts, masked, withholds_archives=has_secrets)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if os.path.isdir(run.artifacts):
        os.rename(run.artifacts, os.path.join(beside, "artifacts"))
    os.rename(masked, run.artifacts)
    return beside


def withheld_archives(run: RunDir) -> List[str]:
    """The names of artifacts that stayed on the host, since the run has secrets."""
    return [file.path for file in _left_out(run.artifacts).files if file.why == ARCHIVE]


def add_left_out(artifacts: str, files: Sequence[LeftOutFile]) -> None:
    """Name files in left-out.json. Raises OSError."""
    before = _left_out(artifacts)
    files = (*before.files, *files)
    left_out = LeftOut(tuple(files[:MAX_NAMED]), before.more + max(0, len(files) - MAX_NAMED))
    write_record(os.path.join(artifacts, "left-out.json"), left_out)


def masked_record(record: T, values: Sequence[str]) -> T:
    """The record with every secret in its texts replaced. Its numbers stay."""
    data = codec.encode(record) if values else {}
    shown = _masked_texts(data, values)
    try:
        return codec.decode(type(record), shown, where=type(record).__name__) if shown != data else record
    except codec.RecordError:  # a word that is a state of ours: not masked, or the state would be unknown
        return record


def _masked_texts(value: Any, values: Sequence[str]) -> Any:
    if isinstance(value, str):
        return mask_text(values, value)
    if isinstance(value, list):
        return [_masked_texts(item, values) for item in value]
    if isinstance(value, dict):
        pairs = [(key, _masked_texts(item, values)) for key, item in value.items()]
        return {key if _FIELD.match(key) else mask_text(values, key): item for key, item in pairs}
    return value


def _left_out(artifacts: str) -> LeftOut:
    try:
        return read_record(LeftOut, os.path.join(artifacts, "left-out.json")) or LeftOut()
    except (OSError, codec.RecordError):
        return LeftOut()


class _Masking:
    def __init__(self, values: Sequence[str], stop_requested: StopRequested) -> None:
        self._values, self._stop_requested = values, stop_requested
        self._bytes_left = MAX_SEARCHED

    def copy_directory(self, source: str, target: str, withholds_archives: bool) -> None:
        left_out: List[LeftOutFile] = []
        for path in _plain_files(source):
            shown = mask_text(self._values, os.path.relpath(path, source))
            try:
                os.makedirs(os.path.dirname(os.path.join(target, shown)), exist_ok=True)
                self._copy(path, unused_path(os.path.join(target, shown)), withholds_archives)
            except OSError as error:
                self._check_stop()
                left_out.append(LeftOutFile("host", shown, None, error.strerror or str(error)))
        if left_out:
            add_left_out(target, left_out)

    def replace(self, path: str, beside: str) -> None:
        """Replace a small file by its masked form; a link, a pipe, or what cannot be searched, is removed."""
        try:
            self._copy(path, beside)
            os.replace(beside, path)
        except FileNotFoundError:
            pass
        except OSError:
            self._check_stop()
            os.unlink(path)

    def _copy(self, path: str, target: str, withholds_archives: bool = False) -> None:
        """Write the masked content to the new file `target`. In a binary file a mask is as long as the secret, so that
        whatever stands behind it stays in its place. Raises OSError for what cannot be searched."""
        with open_file(path, follow_link=False) as source:
            size = os.fstat(source.fileno()).st_size
            if size > self._bytes_left:
                raise OSError("too large to be searched for secrets")
            self._bytes_left -= size
            head = source.read(_HEAD)
            if withholds_archives and _ARCHIVE.match(head):
                raise OSError(ARCHIVE)
            source.seek(0)
            masker = Masker(self._values, keep_length=b"\0" in head)
            try:
                with open(target, "xb") as out:
                    for chunk in iter(lambda: source.read(_CHUNK), b""):
                        self._check_stop()
                        out.write(masker.feed(chunk))
                    out.write(masker.flush())
            except BaseException:
                os.unlink(target)
                raise

    def _check_stop(self) -> None:
        if self._stop_requested():
            raise OSError("the agent was asked to end before its files were masked")


def _plain_files(top: str) -> Iterator[str]:
    for directory, _, names in os.walk(top):
        for path in (os.path.join(directory, name) for name in sorted(names)):
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path
