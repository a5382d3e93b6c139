"""Finds secrets in compressed files: gzip, bzip2, xz and zip, by their first bytes. They cannot be masked in place."""

from __future__ import annotations

import importlib
import zipfile
import zlib
from typing import Any, BinaryIO, Iterator, Optional, Sequence

from .mask import Masker

MAX_UNPACKED = 1 << 28  # bytes of one file that are looked through
_CHUNK = 1 << 20
_MODULES = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}
_ZIP = b"PK\x03\x04"
# A file that breaks off, has a password, or is none of these after all.
_ERRORS = (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile)


def why_unsafe(source: BinaryIO, values: Sequence[str]) -> Optional[str]:
    """Why a file must not leave the host; None where nothing speaks against it."""
    source.seek(0)
    head = source.read(6)
    source.seek(0)
    if head.startswith(_ZIP):
        return _why(_members(source), values)
    for magic, module in _MODULES.items():
        if head.startswith(magic):
            return _why(_unpacked(module, source), values)
    return None


def _why(chunks: Iterator[bytes], values: Sequence[str]) -> Optional[str]:
    masker, size = Masker(values), 0
    try:
        for chunk in chunks:
            size += len(chunk)
            masker.feed(chunk)
            if masker.count:
                return "there is a secret in it, and it is compressed"
            if size > MAX_UNPACKED:
                return "compressed, and too large to be searched for secrets"
    except _ERRORS:
        pass
    masker.flush()
    return "there is a secret in it, and it is compressed" if masker.count else None


def _unpacked(module: str, source: BinaryIO) -> Iterator[bytes]:
    try:
        opened = importlib.import_module(module).open(source)  # a Python may be built without it
    except ImportError:
        return
    except _ERRORS:
        return
    yield from _chunks(opened)


def _members(source: BinaryIO) -> Iterator[bytes]:
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            yield member.filename.encode("utf-8", "surrogateescape") + b"\n"
            with archive.open(member) as opened:
                yield from _chunks(opened)
            yield b"\n"


def _chunks(opened: Any) -> Iterator[bytes]:
    while True:
        try:
            chunk: bytes = opened.read(_CHUNK)
        except Exception as error:  # lzma has an exception of its own, and may be missing
            raise ValueError(str(error)) from None
        if not chunk:
            return
        yield chunk
