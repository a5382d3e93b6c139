"""Logs as people save them: which of several jobs or attempts is meant, and what is known of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.logs.job_log import AnalysedLog, from_file, own_modules
from ci_tasks.results.judge_run import modules_lacking
from tests.logs import github_format as github

Read = Callable[..., AnalysedLog]
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


def zipped(*jobs: Any) -> bytes:
    return github.zipped({f"{at}_{one.name}.txt": github.render(one) for at, one in enumerate(jobs)})


FORMS: list[tuple[str, bytes]] = [
    ("gh, with milliseconds", milliseconds(github.from_gh(FAILED))),
    ("two attempts, the first with another failure", github.render(BEFORE) + github.render(FAILED)),
    ("another job before it", github.render(PASSED) + github.render(FAILED)),
    ("another job before it in gh's form", github.from_gh(PASSED, FAILED)),
    ("a zip whose first job passed", zipped(PASSED, FAILED)),
]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., AnalysedLog]:
    def read(raw: bytes, name: str | None = None) -> AnalysedLog:
        (tmp_path / "log").write_bytes(raw)
        return from_file(str(tmp_path / "log"), name, only_one=True)[0]

    return read


@pytest.mark.parametrize("raw", [row[1] for row in FORMS], ids=[row[0] for row in FORMS])
def test_the_failed_job_of_a_log_in_any_form_is_found(raw: bytes, read: Read) -> None:
    log = read(raw)
    assert (log.job.job_name, log.job.commit) == (FAILED.name, SECOND)
    assert log.job.exit_code == 1
    assert (log.triage.cause, log.triage.text) == ("cuda_oom", OOM)
    shown = raw.splitlines()[(log.triage.line_no or 0) - 1] if raw[:2] != b"PK" else OOM.encode()
    assert OOM.encode() in shown, "the line's number is that of the file"


OTHER = job("gpu (8, test_c.py)", OOM, code=1)


@pytest.mark.parametrize("raw", [github.render(OTHER) + github.render(FAILED), zipped(PASSED, OTHER, FAILED)])
def test_of_two_failed_jobs_none_is_guessed(raw: bytes, read: Read) -> None:
    with pytest.raises(UsageError) as error:
        read(raw)
    assert OTHER.name in error.value.hint and FAILED.name in error.value.hint


@pytest.mark.parametrize("raw", [github.render(PASSED) + github.render(FAILED), zipped(PASSED, FAILED)])
def test_a_job_can_be_named(raw: bytes, read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(raw, PASSED.name).triage.verdict == "passed"
    for log in (raw, github.render(FAILED), github.from_gh(FAILED), OOM.encode()):
        assert read(log, FAILED.name).triage.cause == "cuda_oom"
    assert f"it does not name its job; assuming {FAILED.name!r}" in capsys.readouterr().err
    for log in (raw, github.render(FAILED), github.from_gh(FAILED)):
        with pytest.raises(UsageError, match="another"):
            read(log, "another")


def test_of_very_many_jobs_that_failed_the_first_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log is read once for each job: a matrix of a thousand, all red, took hours."""
    log, text = (
        tmp_path / "matrix.log",
        "%s\tstep\t2025-11-02T10:00:00.0000000Z ##[error]Process completed with exit code %d.\n",
    )
    log.write_text("".join(text % (f"job {number}", 1) for number in range(30)))
    assert [one.job.job_name for one in from_file(str(log))] == [f"job {number}" for number in range(10)]
    assert f"30 jobs failed in {log}: the first 10 are read" in capsys.readouterr().err
    log.write_text("".join(text % (f"job {number}", 0) for number in range(30)))
    assert (len(from_file(str(log))), capsys.readouterr().err) == (30, "")


def test_a_job_may_fail_before_its_first_step(tmp_path: Path) -> None:
    log, unknown = tmp_path / "log", "##[error]Unable to resolve action `a/b@v9`, unable to find version `v9`"
    stamp = "\tUNKNOWN STEP\t2025-11-02T10:00:00.0000000Z "
    said = [("image", "Current runner version: '2.3'"), ("image", unknown), ("lint", "Current runner version: '2.3'")]
    said += [("lint", "##[error]Process completed with exit code 1.")]
    log.write_text("".join(f"{name}{stamp}{text}\n" for name, text in said))
    found = [(one.job.job_name, one.triage.cause) for one in from_file(str(log))]
    assert found == [("image", "dependency_version_mismatch"), ("lint", "unknown")]


# -- which missing modules are the code's own: by the checkout, or by the repository's name ----------------------------


@pytest.mark.parametrize("root", ["", "src", "python"])
def test_a_checkout_lacks_a_module_whose_package_it_has(tmp_path: Path, root: str) -> None:
    package = tmp_path / root / "slime/utils"
    package.mkdir(parents=True)
    (package / "timer.py").touch()
    lacks = modules_lacking(str(tmp_path))
    assert lacks("slime.reward_hub") and lacks("slime.utils.reward_hub")
    assert not lacks("slime.utils.timer"), "it is there, so another installation was imported"
    assert not lacks("slime.utils"), "a package is a module, too"
    assert not lacks("slime.rollout.hub") and not lacks("vllm.utils"), "nothing of it is in the checkout"
    assert not lacks("slime"), "of a package that is not installed at all Python names the first part"


REPOSITORIES = [
    ("THUDM/slime", "slime.utils.reward_hub", True),
    ("THUDM/slime", "slimes.x", False),
    ("NVIDIA-NeMo/Megatron-Bridge", "megatron.bridge.models", True),
    ("NVIDIA-NeMo/Megatron-Bridge", "megatron.core.models", False),
    ("somebody/my-trainer", "my_trainer.x", True),
    ("", "slime.x", False),
]


@pytest.mark.parametrize(("repository", "module", "expected"), REPOSITORIES)
def test_a_repository_has_the_modules_of_its_own_package(repository: str, module: str, expected: bool) -> None:
    assert own_modules(repository)(module) == expected
