"""What is known of a job whose log was not read to its end."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ci_tasks.features.ci_logs.job_log import from_file
from ci_tasks.features.ci_logs.sources import run_zip

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize(
    ("beginning", "verdict", "cause"), [(b"step 1\n", "unknown", "unknown"), (OOM, "fail", "cuda_oom")]
)
def test_the_beginning_of_a_log_shows_a_failure_but_never_that_there_was_none(
    beginning: bytes,
    verdict: str,
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_zip, "_HARMLESS_BYTES", 1 << 20)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(beginning + bytes(4 << 20)))
    triage = from_file(str(tmp_path / "a.log.gz")).triage
    assert (triage.verdict, triage.cause) == (verdict, cause)
    assert "only the first 1 MiB were read: no log shrinks to 4 KiB" in capsys.readouterr().err
