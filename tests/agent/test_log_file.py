"""The log counts and digests what is in the file, and survives a disk that takes nothing more."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ci_tasks.agent.log_file import RunLog


def test_count_and_digest_are_those_of_the_file(tmp_path: Path) -> None:
    """Of the masked bytes: that is what anybody can check."""
    log = RunLog(str(tmp_path / "log"), ["hunter22"])
    for chunk in (b"a hun", b"ter22 b\n", b"", b"hun"):
        log.write(chunk)
    log.close()
    data = (tmp_path / "log").read_bytes()
    assert data == b"a *** b\nhun"
    assert (log.bytes, log.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert log.error is None


def test_an_error_is_kept_and_ends_the_writing_only(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "log")
    log = RunLog(str(tmp_path / "log"), [])
    log.write(b"one")
    log.write(b"two")
    log.close()
    assert log.error == "the log could not be written: No space left on device"
    assert (log.bytes, log.sha256) == (0, hashlib.sha256(b"").hexdigest())
