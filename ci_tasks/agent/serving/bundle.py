"""The tar stream of a run's small files and artifacts. The host packs it, the client unpacks it.

A bundle is not trusted: only plain files are unpacked, only below the run directory, under names that a run has.
"""

from __future__ import annotations

import io
import os
import tarfile
from types import SimpleNamespace
from typing import Any, BinaryIO, Callable, Iterator, List, cast

from ..run_directory import RunDir

SMALL_FILES = ("docker.json", "environment.json", "events.jsonl", "agent.log")
_ARTIFACTS = "artifacts"
_CHUNK = 1 << 18


class BundleError(ValueError):
    """A bundle holds something that no run has: a path that leads elsewhere, a link, a device."""


def send(run_dir: str, write: Callable[[bytes], None]) -> None:
    """Write the bundle of a run. A file that is removed meanwhile is left out, one that shrinks is padded."""
    run = RunDir(run_dir)
    with tarfile.open(
        fileobj=cast(BinaryIO, SimpleNamespace(write=write)), mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK
    ) as out:
        for name in SMALL_FILES:
            _add(out, os.path.join(run.path, name), name)
        for path in _files(run.artifacts):
            _add(out, path, os.path.relpath(path, run.path))


def _files(top: str) -> Iterator[str]:
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            yield os.path.join(directory, name)


def _add(out: tarfile.TarFile, path: str, name: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(handle, "rb") as source:
        if not os.path.isfile(path) or os.path.islink(path):
            return
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime = os.fstat(handle).st_size, int(os.fstat(handle).st_mtime)
        out.addfile(entry, cast(BinaryIO, _FixedSize(source, entry.size)))


def unpack(source: Any, run_dir: str) -> List[str]:
    """Write the files of a bundle into a run directory. Returns their names. Raises BundleError, OSError."""
    written = []
    top = os.path.realpath(run_dir)
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=_CHUNK) as bundle:
            for entry in bundle:
                written.append(_write(bundle, entry, top))
    except tarfile.TarError as error:
        raise BundleError("not a bundle: %s" % error) from None
    return written


def _write(bundle: tarfile.TarFile, entry: tarfile.TarInfo, top: str) -> str:
    parts = entry.name.split("/")
    allowed = entry.name in SMALL_FILES or (parts[0] == _ARTIFACTS and len(parts) > 1)
    if not entry.isreg() or not allowed or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BundleError("the host sent %r, which is no file of a run" % entry.name)
    path = os.path.join(top, *parts)
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    if os.path.realpath(directory) != directory:
        raise BundleError("%r would be written through a link" % entry.name)
    content = bundle.extractfile(entry)
    assert content is not None
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "wb") as out:
        while True:
            chunk = content.read(_CHUNK)
            if not chunk:
                return entry.name
            out.write(chunk)


class _FixedSize(io.RawIOBase):
    """As many bytes as the entry says, whatever becomes of the file meanwhile."""

    def __init__(self, source: Any, size: int) -> None:
        self._source, self._left = source, size

    def read(self, size: int = -1) -> bytes:
        count = self._left if size < 0 else min(size, self._left)
        chunk: bytes = self._source.read(count)
        self._left -= count
        return chunk + b"\0" * (count - len(chunk))
