"""What could not be recovered is listed in words, and only that."""

from __future__ import annotations

import pytest

from tests.logs import github_format as github

IMAGE, DIGEST = "acme/trainer:latest", "sha256:" + "d" * 64
TABLE = "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15 |", "|   0  NVIDIA H100 80GB HBM3          On  |"
OUTPUT = (*github.pulled(IMAGE, DIGEST), *TABLE, "Successfully installed torch-2.9.0")
STEP = github.Step(
    "Execute", f"docker run --gpus all {IMAGE} python gpu_lock_exec.py", output=OUTPUT, exit_code=1, env={"A": "1"}
)
JOB = github.Job("a job", (STEP,), pull_request=3)


def missing(log: bytes) -> list[str]:
    return [text.split(":")[0] for text in github.recovered(log).missing]


# lines with these words are cut out of the log → what is missing
CUT: list[tuple[tuple[bytes, ...], list[str]]] = [
    ((), []),
    ((b"Digest:",), ["the image's digest"]),
    ((b"Complete job name",), ["the job's name"]),
    ((b"Syncing", b"  repository:"), ["the repository"]),
    ((b"Successfully",), ["the packages"]),
    ((b"orphan",), ["the log's end"]),
    ((b"exit code 1", b"orphan"), ["the log's end", "the exit code"]),
    ((b"HEAD is now",), ["the merge's parents"]),
    ((b"%H", b" fetch "), ["the whole commit"]),
    ((b" fetch ", b"%H", b"HEAD is"), ["the commit"]),
]


@pytest.mark.parametrize(("words", "expected"), CUT)
def test_each_thing_that_is_not_there_is_named(words: tuple[bytes, ...], expected: list[str]) -> None:
    lines = github.render(JOB).splitlines(keepends=True)
    named = missing(b"".join(line for line in lines if not any(word in line for word in words)))
    assert [word for word in named if word in expected] == expected
    # A log that does not say how the step ended, or which ref it was, may leave more open than that.
    assert len(named) <= 2


def test_a_log_of_nothing_misses_everything() -> None:
    assert {"the repository", "the commit", "the steps", "the job's name"} <= set(missing(b""))
