"""Masks what leaves the host of a run: the content and the names of its artifacts, and its small files.

A job may write there whatever it likes, so all of it passes here at the end, before anybody fetches it. An artifact
goes into a fresh directory: one that cannot be read is not sent, and no link of the old one matters. Archives and
compressed files cannot be masked, so those of a run with secrets stay on the host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from typing import Any, BinaryIO, Callable, Iterator, List, Optional, Sequence, TypeVar

from . import codec
from .files import open_file, pinned, unused_path
from .mask import Masker, mask_text
from .records import LeftOut, LeftOutFile, MaskedFiles
from .run_directory import SMALL_FILES, RunDir, read_record, write_record

MASKED, LEFT_OUT = "masked.json", "left-out.json"
MAX_NAMED = 1000  # masked files that are named; the others are counted
MAX_SEARCHED = 1 << 32  # bytes of one run; a file with a hole of a terabyte would hold up its end for hours
ARCHIVE = "what is in an archive or compressed cannot be masked"
_CHUNK = 1 << 20
_HEAD = 1 << 13  # bytes in which a binary file has a zero
_TAR, _TAR_AT = b"ustar", 257
# gzip, compress, xz, zstd, zip (whole, empty, split), lz4, 7-Zip, RAR, lzip
_MAGIC = (
    *(b"\x1f\x8b", b"\x1f\x9d", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\3\4", b"PK\5\6", b"PK\7\x08"),
    *(b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\7", b"LZIP"),
)
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")  # with content, and without
_FIELD = re.compile(r"[a-z_0-9]+\Z")  # of a record; other keys are names of packages

T = TypeVar("T")
StopRequested = Callable[[], bool]


def mask_run(
    run: RunDir, values: Sequence[str], stop_requested: StopRequested = lambda: False, *, has_secrets: bool = True
) -> str:
    """Mask the run's files. Its archives are withheld if it `has_secrets`: a client may know others. Returns where the
    old artifacts are, for the caller to remove; "" where there are none. Raises OSError, also where a stop is
    requested: then the artifacts are as they were."""
    own = pinned(run.path)
    if own == run.path and os.path.islink(own):
        raise OSError("%s is a link" % run.path)
    run = RunDir(own)
    for name in SMALL_FILES if values else ():
        _mask_small_file(os.path.join(run.path, name), values, stop_requested)
    if os.path.islink(run.artifacts):
        os.unlink(run.artifacts)  # what it leads to is no artifact
    if not values or not os.path.isdir(run.artifacts):
        return ""
    beside = tempfile.mkdtemp(prefix=".unmasked-", dir=run.path)
    try:
        masked = os.path.join(beside, "masked")
        os.mkdir(masked)
        _ArtifactMasker(run.artifacts, masked, values, stop_requested, has_secrets).run()
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    os.rename(run.artifacts, os.path.join(beside, "artifacts"))
    os.rename(masked, run.artifacts)
    return beside


def withheld_archives(run: RunDir) -> List[str]:
    """The names of artifacts that stayed on the host, since the run has secrets."""
    try:
        left = read_record(LeftOut, os.path.join(run.artifacts, LEFT_OUT)) or LeftOut()
    except (OSError, codec.RecordError):
        return []
    return [file.path for file in left.files if file.why == ARCHIVE]


def masked_record(record: T, values: Sequence[str]) -> T:
    """The record with every secret in its texts replaced. Its numbers stay."""
    text = codec.to_json(record) if values else ""
    if mask_text(values, text) == text:
        return record
    shown = json.dumps(_masked_texts(json.loads(text), values))
    try:
        return codec.from_json(type(record), shown, where=type(record).__name__)
    except codec.RecordError:  # a word that is a state of ours: not masked, or nobody would know the state
        return record


def _masked_texts(value: Any, values: Sequence[str]) -> Any:
    if isinstance(value, str):
        return mask_text(values, value)
    if isinstance(value, list):
        return [_masked_texts(item, values) for item in value]
    if isinstance(value, dict):
        return {
            key if _FIELD.match(key) else mask_text(values, key): _masked_texts(item, values)
            for key, item in value.items()
        }
    return value


class _ArtifactMasker:
    def __init__(
        self, source: str, target: str, values: Sequence[str], stop_requested: StopRequested, withholds_archives: bool
    ) -> None:
        self._source, self._target, self._values, self._stop_requested = source, target, values, stop_requested
        self._withholds_archives = withholds_archives
        self._bytes_left = MAX_SEARCHED

    def run(self) -> None:
        masked: List[str] = []
        left_out: List[LeftOutFile] = []
        for path in _plain_files(self._source):
            name = os.path.relpath(path, self._source)
            shown = mask_text(self._values, name)
            try:
                if self._add(path, os.path.join(self._target, shown)) or shown != name:
                    masked.append(shown)
            except OSError as error:
                _check(self._stop_requested)
                left_out.append(LeftOutFile("host", shown, None, error.strerror or str(error)))
        if masked:
            named = MaskedFiles(tuple(masked[:MAX_NAMED]), max(0, len(masked) - MAX_NAMED))
            write_record(os.path.join(self._target, MASKED), named)
        if left_out:
            add_left_out(self._target, left_out)

    def _add(self, path: str, target: str) -> bool:
        """Whether something in the file was masked."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        target = unused_path(target)
        with open_file(path, follow_link=False) as source:
            size = os.fstat(source.fileno()).st_size
            if size > self._bytes_left:
                raise OSError("too large to be searched for secrets")
            self._bytes_left -= size
            if self._withholds_archives and _is_archive(source.read(_HEAD)):
                raise OSError(ARCHIVE)
            if not _mask_into(source, None, self._values, self._stop_requested):
                try:
                    os.link(path, target, follow_symlinks=False)
                    return False
                except OSError:  # it belongs to another user, or the file system has no links; it can still be copied
                    pass
            return _copy_masked(source, target, self._values, self._stop_requested)


def add_left_out(artifacts: str, files: Sequence[LeftOutFile]) -> None:
    """Name files in left-out.json. Raises OSError."""
    path = os.path.join(artifacts, LEFT_OUT)
    try:
        before = read_record(LeftOut, path) or LeftOut()
    except codec.RecordError:
        before = LeftOut()
    files = (*before.files, *files)
    write_record(path, LeftOut(tuple(files[:MAX_NAMED]), before.more + max(0, len(files) - MAX_NAMED)))


def _is_archive(head: bytes) -> bool:
    return head.startswith(_MAGIC) or head.startswith(_TAR, _TAR_AT) or _BZIP2.match(head) is not None


def _copy_masked(source: BinaryIO, target: str, values: Sequence[str], stop_requested: StopRequested) -> bool:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(handle, "wb") as out:
            return _mask_into(source, out, values, stop_requested)
    except BaseException:
        os.unlink(target)
        raise


def _mask_into(source: BinaryIO, out: Optional[BinaryIO], values: Sequence[str], stop_requested: StopRequested) -> bool:
    """Write the masked content to `out`, or only search where there is none. Returns whether there was a secret. In a
    binary file the mask is as long as the secret, so that whatever stands behind it stays where it was."""
    source.seek(0)
    masker = Masker(values, keep_length=b"\0" in source.read(_HEAD))
    source.seek(0)
    for chunk in iter(lambda: source.read(_CHUNK), b""):
        _check(stop_requested)
        shown = masker.feed(chunk)
        if out is not None:
            out.write(shown)
        elif masker.count:
            return True
    shown = masker.flush()
    if out is not None:
        out.write(shown)
    return masker.count > 0


def _check(stop_requested: StopRequested) -> None:
    if stop_requested():
        raise OSError("the agent was asked to end before its files were masked")


def _mask_small_file(path: str, values: Sequence[str], stop_requested: StopRequested) -> None:
    """Replace the file by its masked form; a link, a pipe, or what cannot be read or searched, is removed."""
    try:
        source = open_file(path, follow_link=False)
    except FileNotFoundError:
        return
    except OSError:
        os.unlink(path)
        return
    with source:
        if os.fstat(source.fileno()).st_size > MAX_SEARCHED:
            os.unlink(path)
        elif _mask_into(source, None, values, stop_requested):
            beside = unused_path(path + ".masked")
            _copy_masked(source, beside, values, stop_requested)
            os.replace(beside, path)


def _plain_files(top: str) -> Iterator[str]:
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            path = os.path.join(directory, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path
