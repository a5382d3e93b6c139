"""A compressed file with a secret is found out, whatever packed it; one without passes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable

import pytest

from ci_tasks.agent import compressed_files

SECRET = b"correct-horse"
TEXT = b"line\n" * 1000 + b"it is %s.\n" + b"line\n" * 1000


def _zip(data: bytes, name: str = "a") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("first", b"nothing")
        archive.writestr(name, data)
    return out.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "two gzips, one behind the other": lambda data: gzip.compress(b"nothing") + gzip.compress(data),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": _zip,
}


def unsafe(data: bytes) -> str | None:
    return compressed_files.why_unsafe(io.BytesIO(data), [SECRET.decode()])


@pytest.mark.parametrize("name", PACKERS)
def test_a_secret_in_it_is_found(name: str) -> None:
    assert unsafe(PACKERS[name](TEXT % SECRET)) == "there is a secret in it, and it is compressed"
    assert unsafe(PACKERS[name](TEXT % b"nothing")) is None


def test_the_name_of_a_member_may_be_the_secret() -> None:
    assert unsafe(_zip(b"", name=f"a/{SECRET.decode()}/b"))


@pytest.mark.parametrize("name", [name for name in PACKERS if name != "zip"])
def test_what_can_be_read_of_half_a_file_is_searched(name: str) -> None:
    packed = PACKERS[name](SECRET + bytes(range(256)) * 5000 + TEXT)
    assert unsafe(packed[:-10])


def test_what_unpacks_without_end_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_files, "MAX_UNPACKED", 1 << 20)
    assert unsafe(gzip.compress(b"\0" * (4 << 20))) == "compressed, and too large to be searched for secrets"


@pytest.mark.parametrize("data", [b"", b"plain", b"\x1f\x8b", b"BZhello", b"PK\x03\x04 no zip", b"\xfd7zXZ\0 no xz"])
def test_what_only_looks_compressed_passes(data: bytes) -> None:
    assert unsafe(data) is None
