"""The file of `--events`: whole lines, behind what it has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ci_tasks.run.events import EventStream, Message


def test_a_full_disk_takes_nothing_of_what_standard_output_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ci-tasks … --events - >> all.jsonl`"""
    file = tmp_path / "all.jsonl"
    file.write_text("of an earlier command\n" * 100)
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    events = EventStream(fd)
    events.write(Message("now", "first"))
    before, write = file.read_bytes(), os.write

    def half(fd: int, content: bytes) -> int:
        write(fd, content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", half)
    events.write(Message("now", "second"))
    monkeypatch.undo()
    os.close(fd)
    assert before.count(b"of an earlier command") == 100
    assert before.endswith(b'"first", "event": "message"}\n') and file.read_bytes() == before
