"""Logs as people save them: which of several jobs or attempts is meant, and what is said of it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.ci_logs.job_log import AnalysedLog, from_file
from tests.features.ci_logs.parse import github_format as github

Read = Callable[..., AnalysedLog]
Capture = pytest.CaptureFixture[str]
FIRST, SECOND = "1" * 40, "2" * 40
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
MISSING = "ModuleNotFoundError: No module named 'flash_attn'"


def job(name: str, *output: str, code: int = 0, commit: str = FIRST) -> Any:
    step = github.Step("Execute", "python tests/test_a.py", output=output, exit_code=code)
    return github.Job(name, (step,), commit=commit, pull_request=7)


PASSED = job("unit (1, test_a.py)", "2 passed in 0.1s")
FAILED = job("unit (1, test_b.py)", OOM, code=1, commit=SECOND)
BEFORE = job("unit (1, test_b.py)", MISSING, code=1)


def milliseconds(raw: bytes) -> bytes:
    return re.sub(rb"(\.\d{3})\d{4}Z", rb"\1Z", raw)


def numbered(raw: bytes, mark: bytes = b"\t") -> bytes:
    lines = raw.removeprefix(github.BOM.encode()).splitlines()
    return b"".join(b"%5d%s%s\n" % (at, mark, line) for at, line in enumerate(lines, 1))


def zipped(*jobs: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for at, one in enumerate(jobs):
            archive.writestr(f"{at}_{one.name}.txt", github.render(one))
    return file.getvalue()


FORMS: list[tuple[str, bytes]] = [
    ("raw, with milliseconds", milliseconds(github.render(FAILED))),
    ("gh, with milliseconds", milliseconds(github.from_gh(FAILED))),
    ("raw, with a browser's line numbers", numbered(github.render(FAILED))),
    ("gh, with line numbers and milliseconds", numbered(milliseconds(github.from_gh(FAILED)), b" | ")),
    ("two attempts, the first with another failure", github.render(BEFORE) + github.render(FAILED)),
    ("another job before it", github.render(PASSED) + github.render(FAILED)),
    ("another job before it in gh's form", github.from_gh(PASSED, FAILED)),
    ("a zip whose first job passed", zipped(PASSED, FAILED)),
]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., AnalysedLog]:
    def read(raw: bytes, name: str | None = None, attempt: int | None = None) -> AnalysedLog:
        (tmp_path / "log").write_bytes(raw)
        return from_file(str(tmp_path / "log"), name, attempt=attempt)

    return read


@pytest.mark.parametrize("raw", [row[1] for row in FORMS], ids=[row[0] for row in FORMS])
def test_the_failed_job_of_a_log_in_any_form_is_found(raw: bytes, read: Read) -> None:
    log = read(raw)
    assert log.job.job_name == FAILED.name
    assert log.job.commit == SECOND
    assert log.job.exit_code == 1
    assert (log.triage.cause, log.triage.text) == ("cuda_oom", OOM)
    shown = raw.splitlines()[(log.triage.line_no or 0) - 1] if raw[:2] != b"PK" else OOM.encode()
    assert OOM.encode() in shown, "the line's number is that of the file"


@pytest.mark.parametrize("form", [github.render, github.from_gh])
def test_an_attempt_can_be_chosen(form: Callable[[Any], bytes], read: Read, capsys: Capture) -> None:
    raw = form(BEFORE) + form(FAILED)
    first = read(raw, attempt=1)
    assert (first.triage.text, first.job.commit) == (MISSING, FIRST)
    assert "it has 2 attempts: attempt 1 counts, from line " in capsys.readouterr().err
    assert read(raw, attempt=2) == read(raw)
    assert "it has 2 attempts: the last one counts, from line " in capsys.readouterr().err
    with pytest.raises(UsageError, match="has 2 attempts of the job, not 3"):
        read(raw, attempt=3)
    with pytest.raises(UsageError, match="has 1 attempt of the job, not 2"):
        read(form(FAILED), attempt=2)


OTHER = job("gpu (8, test_c.py)", OOM, code=1)


@pytest.mark.parametrize("raw", [github.render(OTHER) + github.render(FAILED), zipped(PASSED, OTHER, FAILED)])
def test_of_two_failed_jobs_none_is_guessed(raw: bytes, read: Read) -> None:
    with pytest.raises(UsageError) as error:
        read(raw)
    assert OTHER.name in error.value.hint and FAILED.name in error.value.hint


@pytest.mark.parametrize("raw", [github.render(PASSED) + github.render(FAILED), zipped(PASSED, FAILED)])
def test_a_job_can_be_named_and_which_one_was_taken_is_said(raw: bytes, read: Read, capsys: Capture) -> None:
    read(raw)
    assert "of 2 jobs only 'unit (1, test_b.py)' failed: it is meant" in capsys.readouterr().err
    assert read(raw, PASSED.name).triage.verdict == "passed"
    for log in (raw, github.render(FAILED), github.from_gh(FAILED), OOM.encode()):
        assert read(log, FAILED.name).triage.cause == "cuda_oom"
    assert f"it does not name its job: it is read as that of {FAILED.name!r}" in capsys.readouterr().err
    for log in (raw, github.render(FAILED), github.from_gh(FAILED)):
        with pytest.raises(UsageError, match="another"):
            read(log, "another")
