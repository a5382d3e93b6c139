"""What `--log FILE|-` takes: logs as people have them, and what is none, with the next step."""

from __future__ import annotations

import gzip
import os
import stat
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from ci_tasks.errors import Blocked, UnknownName, UsageError
from ci_tasks.logs import log_file
from ci_tasks.logs.log_file import JobLog, open_log
from tests.logs.github_format import zipped

TEXT = b"2025-11-02T10:00:00.0000000Z ##[group]Run tests\n2025-11-02T10:00:01.0000000Z ##[error]it broke\n"
LINES = TEXT.splitlines()

Piped = Callable[[bytes], None]


def named(value: object) -> str | None:
    """For bytes, which may differ from one collection to the next, no more than their kind."""
    return type(value).__name__ if isinstance(value, (bytes, list)) else None


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Piped]:
    """Puts bytes on standard input, as a pipe that cannot be read twice."""
    with ExitStack() as held:

        def pipe(data: bytes) -> None:
            (tmp_path / "a log.txt").write_bytes(data)
            cat = held.enter_context(Popen(["cat", tmp_path / "a log.txt"], stdout=PIPE, text=True))
            monkeypatch.setattr(sys, "stdin", cat.stdout)

        yield pipe


def read(path: str) -> None:
    with open_log(path) as log:
        for job in log.jobs:
            assert lines_of(job)


def lines_of(job: JobLog) -> list[bytes]:
    return b"".join(job.chunks()).removesuffix(b"\n").split(b"\n")


def refused(path: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(str(path))
    assert caught.value.hint, "the next step"
    return caught.value


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (TEXT, LINES),
        (gzip.compress(TEXT), LINES),
        (gzip.compress(TEXT[:40]) + gzip.compress(TEXT[40:]), LINES),
        (TEXT.decode().encode("utf-16"), LINES),
        (b"caf\xe9 \xff\xfe\n\xe4\xbd\xa0\n", [b"caf\xe9 \xff\xfe", b"\xe4\xbd\xa0"]),
        (b"\x1b[31mred\x1b[0m\n\x07\x08 50%\r100%\n", [b"\x1b[31mred\x1b[0m", b"\x07\x08 50%\r100%"]),
        (zipped({"0_ckpt.txt": TEXT}), LINES),
    ],
    ids=named,
)
@pytest.mark.parametrize("way", ["a file", "a pipe", "standard input"])
def test_a_log_can_be_read_again(tmp_path: Path, piped: Piped, data: bytes, lines: list[bytes], way: str) -> None:
    piped(data)
    ways = {"a file": str(tmp_path / "a log.txt"), "a pipe": f"/dev/fd/{sys.stdin.fileno()}", "standard input": "-"}
    with open_log(ways[way]) as log:
        assert [lines_of(log.jobs[0]), lines_of(log.jobs[0])] == [lines] * 2
        assert log.name == ("standard input" if way == "standard input" else ways[way])
        first, second = log.jobs[0].chunks(), log.jobs[0].chunks()
        assert next(first) == next(second), "readers do not share a place"


def test_a_stream_is_kept_on_disk_without_a_name_and_not_in_memory(
    tmp_path: Path, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    piped(TEXT * (1 << 18))
    tracemalloc.start()
    try:
        with open_log("-") as log:
            assert os.listdir(tmp_path / "tmp") == []
            assert sum(chunk.count(b"\n") for chunk in log.jobs[0].chunks()) == 2 << 18
        assert tracemalloc.get_traced_memory()[1] < len(TEXT) * (1 << 18) // 4
    finally:
        tracemalloc.stop()


def test_a_copy_is_private_and_a_full_disk_is_blocked_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    with log_file.temporary_copy([b"x"], "a log") as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "w+b", buffering=0))  # noqa: SIM115
    with pytest.raises(Blocked, match="TMPDIR"):
        log_file.temporary_copy([b"x"], "a log")


# -- the zip of a run


ZIPS = [
    ({"1_ckpt.txt": b"all\n", "0_lint (3.10, x).txt": b"fine\n"}, ["lint (3.10, x)", "ckpt"]),
    ({"0_a.txt": b"a\n", "a/1_Set up job.txt": b"b\n"}, ["a"]),
    ({"0_\x1b[2J.txt": b"a\n"}, ["�[2J"]),
    ({"../../etc/passwd.log": b"a\n"}, ["../../etc/passwd.log"]),  # nothing is unpacked to it
    ({"saved/failed.log": b"a\n", "notes.md": b"#\n"}, ["saved/failed.log"]),
]


@pytest.mark.parametrize(("members", "jobs"), ZIPS)
def test_a_zip_has_a_log_for_each_job(tmp_path: Path, members: dict[str, bytes], jobs: list[str]) -> None:
    (tmp_path / "logs.zip").write_bytes(zipped(members))
    with open_log(str(tmp_path / "logs.zip")) as log:
        assert [job.name for job in log.jobs] == jobs
        assert all(lines_of(job) for job in log.jobs)


def test_a_job_of_a_zip_is_read_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "logs.zip").write_bytes(zipped({"0_lint.txt": b"l\n", "1_ckpt.txt": b"all\n"}))
    with open_log(str(tmp_path / "logs.zip")) as log:
        with pytest.raises(UnknownName, match="did you mean 'ckpt'"):
            log.job("ckpd")
        assert lines_of(log.job("ckpt")) == [b"all"]


def declaring(size: int) -> bytes:
    data = bytearray(zipped({"0_a.txt": TEXT}))
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, size)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zipped({"0_a.txt": TEXT * 100})[:-30], "cannot be read: "),
        (declaring(3 << 30), "so it is not a log"),
        (zipped({}), "it contains nothing"),
        (zipped({"cpu/1_Set up job.txt": TEXT, "cpu/2_Run.txt": TEXT}), "is a zip without a log"),  # parts of a job
        (zipped({"0_a.txt": bytes(9999)}), "is binary"),
        (gzip.compress(TEXT * 100)[:-9], "cannot be read: "),
        (gzip.compress(TEXT) + b"rubbish", "cannot be read: "),
        (gzip.compress(zipped({"0_a.txt": TEXT})), "is binary"),
        (b"", "is empty: nothing to triage"),
        (b"\xfd7zXZ\x00\x00\x04", "is binary"),
    ],
    ids=named,
)
def test_what_is_no_log_is_refused_with_the_reason(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    error = refused(tmp_path / "x")
    assert message in error.message
    assert "\x1b" not in str(error)


def test_a_gzip_bomb_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_HARMLESS_BYTES", 1 << 20)
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"a\n" * (2 << 20)))
    assert "has more than 1 MiB, so it is not a log" in refused(tmp_path / "x.gz").message
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"a\n" * (1 << 19)))
    read(str(tmp_path / "x.gz"))


# -- what is no file


def test_what_is_no_file_or_cannot_be_read(tmp_path: Path, piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    piped(b"")
    unread = dict.fromkeys([str(tmp_path / "loop"), "/proc/self/mem", "nul\0byte"], "cannot be read")
    devices = {"/dev/zero": "is binary", "/dev/null": "is empty", "-": "empty: nothing to triage"}
    for path, message in {**unread, **devices, str(tmp_path): "Is a directory"}.items():
        assert message in refused(path).message
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is a terminal" in refused("-").message
