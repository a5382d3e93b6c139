"""What could not be recovered is listed in words, and only that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from ci_tasks.features.ci_logs.parse.job_parser import parse_job
from ci_tasks.features.ci_logs.parse.split_lines import split_lines
from tests.features.ci_logs.parse import github_format as github

IMAGE, DIGEST = "acme/trainer:latest", "sha256:" + "d" * 64
TABLE = "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15 |", "|   0  NVIDIA H100 80GB HBM3          On  |"
OUTPUT = (*github.pulled(IMAGE, DIGEST), *TABLE, "Successfully installed torch-2.9.0")
STEP = github.Step(
    "Execute", f"docker run --gpus all {IMAGE} python gpu_lock_exec.py", output=OUTPUT, exit_code=1, env={"A": "1"}
)
JOB = github.Job("a job", (STEP,), pull_request=3)


def missing(log: bytes) -> list[str]:
    return [text.split(":")[0] for text in parse_job(split_lines(log.splitlines(keepends=True))).missing]


def test_a_log_that_tells_everything_misses_nothing() -> None:
    assert missing(github.render(JOB)) == []


def without(*needles: bytes) -> Callable[[bytes], bytes]:
    def cut(log: bytes) -> bytes:
        return b"".join(line for line in log.splitlines(keepends=True) if not any(marker in line for marker in needles))

    return cut


CUT: list[tuple[Callable[[bytes], bytes], list[str]]] = [
    (without(b"Digest:"), ["the image's digest"]),
    (without(b"Complete job name"), ["the job's name"]),
    (without(b"Runner name"), ["the runner"]),
    (without(b"Syncing", b"  repository:"), ["the repository"]),
    (without(b"Driver Version"), ["the driver's version"]),
    (without(b"NVIDIA H100"), ["the GPU model"]),
    (without(b"Successfully"), ["the packages"]),
    (without(b"orphan"), ["the log's end"]),
    (without(b"exit code 1", b"orphan"), ["the log's end", "the exit code"]),
    (without(b"HEAD is now"), ["the merge's parents"]),
    (without(b"%H", b" fetch "), ["the whole commit"]),
    (without(b" fetch ", b"%H", b"HEAD is"), ["the commit"]),
    (without(b" fetch ", b" checkout --", b"HEAD is"), ["the ref"]),
]


@pytest.mark.parametrize(("cut", "expected"), CUT)
def test_each_thing_that_is_not_there_is_named(cut: Callable[[bytes], bytes], expected: list[str]) -> None:
    named = missing(cut(github.render(JOB)))
    assert [word for word in named if word in expected] == expected
    # A log that does not say how the step ended, or which ref it was, may leave more open than that.
    assert len(named) <= 2


def test_a_log_of_nothing_misses_everything() -> None:
    assert {"the repository", "the commit", "the steps", "the job's name", "the times"} <= set(missing(b""))


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"env": {"KEY": "***", "A": "x"}}, "the values of KEY: GitHub shows secrets as ***, so yours are used"),
    ({"script": "docker run $IMAGE x"}, "the image: the script calls it $IMAGE, which only the shell knew"),
    ({"script": "docker compose up"}, "the image: the script names docker, and no `docker run` could be read from it"),
]


@pytest.mark.parametrize(("changed", "sentence"), OTHERS)
def test_what_only_ci_knew_is_named(changed: dict[str, Any], sentence: str) -> None:
    job = dataclasses.replace(JOB, steps=(dataclasses.replace(STEP, **changed),))
    assert sentence in parse_job(split_lines(github.render(job).splitlines())).missing


def test_of_several_failing_steps_the_doubt_is_named() -> None:
    job = dataclasses.replace(JOB, steps=(STEP, dataclasses.replace(STEP, name="Upload", script="false")))
    parsed_job = parse_job(split_lines(github.from_gh(job).splitlines()))
    assert parsed_job.failed_step == "Execute"
    assert any("Execute, Upload all ended badly" in text for text in parsed_job.missing)
