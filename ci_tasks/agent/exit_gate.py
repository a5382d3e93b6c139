"""Masks what leaves the host of a run: the content and the names of its artifacts, and its small files.

A job may write there whatever it likes, so all of it passes here at the end, before anybody fetches it. An artifact
goes into a fresh directory: one that cannot be read is not sent, and no link of the old one matters.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from typing import Any, BinaryIO, Iterator, List, Sequence, TypeVar

from . import codec
from .compressed_files import why_unsafe
from .mask import Masker, mask_text
from .records import LeftOut, LeftOutFile, MaskedFiles
from .run_directory import SMALL_FILES, RunDir, read_record, write_record

MASKED, LEFT_OUT = "masked.json", "left-out.json"
MAX_NAMED = 1000  # masked files that are named; the others are counted
MAX_SEARCHED = 1 << 32  # bytes of one run; a file with a hole of a terabyte would hold up its end for hours
_CHUNK = 1 << 20
_HEAD = 1 << 13  # bytes in which a binary file has a zero
_FIELD = re.compile(r"[a-z_0-9]+\Z")  # of a record; other keys are names of packages

T = TypeVar("T")


def mask_run(run: RunDir, values: Sequence[str]) -> str:
    """Mask the run's files. Returns where the old artifacts are, for the caller to remove; "" where there are none.
    Raises OSError."""
    if os.path.islink(run.path):
        raise OSError("%s is a link" % run.path)
    for name in SMALL_FILES if values else ():
        _mask_small_file(os.path.join(run.path, name), values)
    if os.path.islink(run.artifacts):
        os.unlink(run.artifacts)  # what it leads to is no artifact
    if not values or not os.path.isdir(run.artifacts):
        return ""
    old = tempfile.mkdtemp(prefix=".unmasked-", dir=run.path)
    os.rename(run.artifacts, os.path.join(old, "artifacts"))
    os.mkdir(run.artifacts)
    _ArtifactMasker(os.path.join(old, "artifacts"), run.artifacts, values).run()
    return old


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
    def __init__(self, source: str, target: str, values: Sequence[str]) -> None:
        self._source, self._target, self._values = source, target, values
        self._masked: List[str] = []
        self._left_out: List[LeftOutFile] = []
        self._bytes_left = MAX_SEARCHED

    def run(self) -> None:
        for path in _plain_files(self._source):
            name = os.path.relpath(path, self._source)
            shown = mask_text(self._values, name)
            try:
                is_masked = self._move(path, os.path.join(self._target, shown)) or shown != name
            except OSError as error:
                self._left_out.append(LeftOutFile("host", shown, None, error.strerror or str(error)))
                continue
            if is_masked:
                self._masked.append(shown)
        self._note()

    def _note(self) -> None:
        if self._masked:
            named = MaskedFiles(tuple(self._masked[:MAX_NAMED]), max(0, len(self._masked) - MAX_NAMED))
            write_record(os.path.join(self._target, MASKED), named)
        if self._left_out:
            path = os.path.join(self._target, LEFT_OUT)
            try:
                before = read_record(LeftOut, path) or LeftOut()
            except codec.RecordError:
                before = LeftOut()
            files = (*before.files, *self._left_out)
            write_record(path, LeftOut(files[:MAX_NAMED], before.more + max(0, len(files) - MAX_NAMED)))

    def _move(self, path: str, target: str) -> bool:
        """Whether something in the file was masked."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        target = _unused(target)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as source:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                raise OSError("not a plain file")
            if info.st_size > self._bytes_left:
                raise OSError("too large to be searched for secrets")
            self._bytes_left -= info.st_size
            reason = why_unsafe(source, self._values)
            if reason:
                raise OSError(reason)
            source.seek(0)
            if not _has_secrets(source, self._values):
                try:
                    os.rename(path, target)
                    return False
                except OSError:  # in a directory of another user; it can still be copied
                    pass
            return mask_file(source, target, self._values)


def mask_file(source: BinaryIO, target: str, values: Sequence[str]) -> bool:
    """Copy `source` to the new file `target`. Returns whether something was masked. In a binary file the mask is as
    long as the secret, so that whatever stands behind it stays where it was."""
    source.seek(0)
    masker = Masker(values, keep_length=b"\0" in source.read(_HEAD))
    source.seek(0)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "wb") as out:
        for chunk in iter(lambda: source.read(_CHUNK), b""):
            out.write(masker.feed(chunk))
        out.write(masker.flush())
    return masker.count > 0


def _has_secrets(source: BinaryIO, values: Sequence[str]) -> bool:
    masker = Masker(values)
    for chunk in iter(lambda: source.read(_CHUNK), b""):
        masker.feed(chunk)
        if masker.count:
            return True
    masker.flush()
    return masker.count > 0


def _mask_small_file(path: str, values: Sequence[str]) -> None:
    """Replace the file by its masked form; a link, or what cannot be read or searched, is removed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError:
        os.unlink(path)
        return
    with os.fdopen(handle, "rb") as source:
        if os.fstat(handle).st_size > MAX_SEARCHED:
            os.unlink(path)
            return
        if not _has_secrets(source, values):
            return
        beside = _unused(path + ".masked")
        mask_file(source, beside, values)
    os.replace(beside, path)


def _plain_files(top: str) -> Iterator[str]:
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            path = os.path.join(directory, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path


def _unused(path: str) -> str:
    """`path`, or one beside it that does not exist yet."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = "%s.%d" % (path, number)
    return free
