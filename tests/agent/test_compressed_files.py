"""A compressed file with a secret is found out, whatever packed it and how often; one without passes, if it can be
searched to its end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
import tarfile
import zipfile
from collections.abc import Callable

import pytest

from ci_tasks.agent import compressed_files
from ci_tasks.agent.compressed_files import FOUND, MAX_DEPTH, TOO_DEEP, TOO_LARGE, UNREADABLE, ArchiveSearch

SECRET = b"correct-horse"
LIMIT = 1 << 22
TEXT = b"line\n" * 1000 + b"it is %s.\n" + b"line\n" * 1000


def _zip(data: bytes, name: str = "a") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first", b"nothing")
        archive.writestr(name, data)
    return out.getvalue()


def _tar(data: bytes, name: str = "a", kind: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(mode="w", fileobj=out, format=kind) as archive:
        for member, content in (("first", b"nothing"), (name, data), ("last", b"nothing")):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _byte_by_byte(data: bytes) -> bytes:
    return b"".join(gzip.compress(b"%c" % byte) for byte in data[:512]) + gzip.compress(data[512:])


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "two gzips, one behind the other": lambda data: gzip.compress(b"nothing") + gzip.compress(data),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": _zip,
    "zip behind a program": lambda data: b"#!/usr/bin/env python3\n" + _zip(data),
    "gzip in tar": lambda data: _tar(gzip.compress(data)),
    "gzip in tar as POSIX has it": lambda data: _tar(gzip.compress(data), "ä" * 200, tarfile.PAX_FORMAT),
    "gzip in the second tar": lambda data: _tar(b"") + _tar(gzip.compress(data)),
    "tar in gzip": lambda data: gzip.compress(_tar(data)),
    "gzip in tar in gzip": lambda data: gzip.compress(_tar(gzip.compress(data))),
    "xz in tar in tar": lambda data: _tar(_tar(lzma.compress(data))),
    "gzip in gzip": lambda data: gzip.compress(gzip.compress(data)),
    "gzip in tar in gzips of single bytes": lambda data: _byte_by_byte(_tar(gzip.compress(data))),
    "zip in zip": lambda data: _zip(_zip(data)),
    "bzip2 in zip in xz": lambda data: lzma.compress(_zip(bz2.compress(data))),
    "what stands behind a tar in gzip": lambda data: gzip.compress(_tar(b"") + data),
}


def unsafe(data: bytes) -> str | None:
    return ArchiveSearch([SECRET.decode()], LIMIT).why_unsafe(io.BytesIO(data))


@pytest.mark.parametrize("name", PACKERS)
def test_a_secret_in_it_is_found(name: str) -> None:
    assert unsafe(PACKERS[name](TEXT % SECRET)) == FOUND
    assert unsafe(PACKERS[name](TEXT % b"nothing")) is None


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, _zip])
def test_the_name_of_a_member_may_be_the_secret(pack: Callable[[bytes], bytes]) -> None:
    assert unsafe(pack(_zip(b"", name=f"a/{SECRET.decode()}/b"))) == FOUND


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_what_can_be_read_of_half_a_file_is_searched(name: str) -> None:
    noise = random.Random(1).randbytes(1 << 20)
    packed = PACKERS[name](noise + SECRET)
    assert unsafe(packed[:-1]) == FOUND
    assert unsafe(PACKERS[name](noise)[:-1]) is None
    assert unsafe(_tar(packed[:-1])) == FOUND


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz", "zip", "gzip in tar", "zip in zip"])
def test_what_cannot_be_searched_to_its_end_does_not_pass(name: str) -> None:
    data = bytearray(PACKERS[name](random.Random(1).randbytes(1 << 16)))
    data[1 << 15 : (1 << 15) + 8] = b"\xff" * 8
    assert unsafe(bytes(data)) == UNREADABLE


def test_a_zip_with_a_password_does_not_pass() -> None:
    data = bytearray(_zip(b"x"))
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(magic) + at] |= 1
    assert unsafe(bytes(data)) == UNREADABLE


@pytest.mark.parametrize("head", ["28b52ffd", "04224d18", "377abcaf271c", "526172211a0700", "1f9d90"])
@pytest.mark.parametrize("pack", [lambda data: data, _tar, _zip])
def test_what_python_cannot_unpack_does_not_pass(pack: Callable[[bytes], bytes], head: str) -> None:
    assert unsafe(pack(bytes.fromhex(head) + b"0123456789")) == UNREADABLE


def test_what_this_python_was_built_without_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert unsafe(lzma.compress(b"x")) == UNREADABLE


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, _tar, _zip])
def test_what_unpacks_without_end_does_not_pass(pack: Callable[[bytes], bytes]) -> None:
    bomb = gzip.compress(b"\0" * (LIMIT + 1))
    searched = ArchiveSearch([SECRET.decode()], LIMIT)
    assert searched.why_unsafe(io.BytesIO(pack(bomb))) == TOO_LARGE
    assert searched.bytes_searched < 2 * LIMIT


def test_many_archives_share_one_limit() -> None:
    """What a zip has many names for is unpacked many times."""
    part = gzip.compress(gzip.compress(b"\0" * (LIMIT // 4)))
    assert unsafe(_zip(part)) is None
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(5):
            archive.writestr(str(number), part)
    assert unsafe(out.getvalue()) == TOO_LARGE


def test_archives_in_archives_end_somewhere() -> None:
    data = b"x"
    for _ in range(MAX_DEPTH):
        data = gzip.compress(data)
    assert unsafe(data) is None
    assert unsafe(gzip.compress(data)) == TOO_DEEP


def test_a_zip_of_very_many_files_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_files, "MAX_MEMBERS", 1)
    assert unsafe(_zip(b"")) == TOO_LARGE
    assert unsafe(gzip.compress(_zip(b""))) == TOO_LARGE


@pytest.mark.parametrize("data", [b"", b"plain", b"\x1f\x8b", b"BZhello", b"PK alone", b"ustar"])
def test_what_only_looks_compressed_passes(data: bytes) -> None:
    assert unsafe(data) is None
