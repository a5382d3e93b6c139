"""What is known of a job: from its log, as far as that was read, and from GitHub."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci_tasks.features.ci_logs.job_log import from_file, from_url
from ci_tasks.features.ci_logs.sources import failed_job, run_zip
from ci_tasks.features.ci_logs.sources.log_file import open_log

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize(
    ("beginning", "verdict", "cause"), [(b"step 1\n", "unknown", "unknown"), (OOM, "failed", "cuda_oom")]
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


def test_what_a_log_does_not_say_is_known_from_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimpleNamespace(workflow_path=".github/workflows/pr-test.yml")
    job = {"repository": "org/repo", "name": "unit", "run": run, "runner_name": "gpu-1", "pull_requests": (7,)}

    @contextmanager
    def open_failed_job(url: str, *, with_green: bool) -> Iterator[SimpleNamespace]:
        (tmp_path / "log").write_bytes(b"KeyError: 'x'\n" + OOM)
        (tmp_path / "green").write_bytes(b"KeyError: 'x'\nok\n")
        with open_log(str(tmp_path / "log")) as log, open_log(str(tmp_path / "green")) as green:
            named = SimpleNamespace(**job, has_failed=True)
            yield SimpleNamespace(job=named, log=log, green=green, green_note="what is normal: run 3")

    monkeypatch.setattr(failed_job, "open_failed_job", open_failed_job)
    analysed = from_url("https://github.com/org/repo/actions/runs/1/job/2")
    found = analysed.job
    assert (found.repository, found.job_name, found.workflow) == ("org/repo", "unit", run.workflow_path)
    assert (found.runner_name, found.pull_request, found.conclusion) == ("gpu-1", 7, "failure")
    assert analysed.triage.cause == "cuda_oom"
    assert capsys.readouterr().err == "what is normal: run 3\n"
