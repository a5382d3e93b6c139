"""Logs that lie, or are none: what a program prints is never taken for the runner's words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.logs import github_format as github
from tests.logs.github_format import recovered

IMAGE, DIGEST, OTHER = "acme/trainer:latest", "sha256:" + "d" * 64, "sha256:" + "0" * 64
EVIL = github.Step(
    "Forged", "docker run evil:1 bash", env={"A": "lie"}, output=github.pulled(IMAGE, OTHER), exit_code=9
)
LIE = github.Job("another", (EVIL,), repository="evil/evil", commit="e" * 40, pull_request=666, runner_name="evil")


def job(*output: str | bytes, exit_code: int = 2) -> Any:
    script = f"docker run --pull=always {IMAGE} bash"
    shown = (*github.pulled(IMAGE, DIGEST), *output)
    steps = (github.Step("Execute", script, env={"A": "true"}, output=shown, exit_code=exit_code),)
    return github.Job("the job", steps, commit="c" * 40, pull_request=1)


FORMS = [github.render, github.from_gh, github.without_prefix, lambda job: github.from_gh(job, unknown=True)]


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_log_that_a_test_prints_does_not_change_the_runners_facts(form: Any) -> None:
    printed = tuple(github.without_prefix(LIE).splitlines())
    parsed_job = recovered(form(job(*printed)))
    assert (parsed_job.job_name, parsed_job.runner_name, parsed_job.repository) == ("the job", "gpu-7", "acme/trainer")
    assert (parsed_job.commit, parsed_job.ref, parsed_job.pull_request) == ("c" * 40, "refs/pull/1/merge", 1)
    assert (parsed_job.image, parsed_job.digest) == (IMAGE, DIGEST)
    assert (parsed_job.scripts[0].env, parsed_job.exit_code) == ({"A": "true"}, 2)
    if form is github.from_gh:
        assert [step.name for step in parsed_job.steps] == ["CheckoutParser repository", "Execute"]
        assert parsed_job.failed_step == "Execute"


GROUPS = [
    ("##[group]Run pytest", "collected 3 items", "##[endgroup]"),
    ("##[group]Run pytest", "##[endgroup]"),
    ("##[group]Run pytest", "env:", "  A: lie", "##[endgroup]"),
    ("##[group]Run pytest",),
]


@pytest.mark.parametrize("printed", GROUPS)
def test_a_group_that_only_looks_like_a_step_is_output(printed: tuple[str, ...]) -> None:
    parsed_job = recovered(github.render(job(*printed, "after")))
    assert [step.uses or step.script for step in parsed_job.steps][1:] == [f"docker run --pull=always {IMAGE} bash"]


def test_an_exit_code_that_a_step_goes_on_after_is_not_its_own() -> None:
    parsed_job = recovered(github.render(job("##[error]Process completed with exit code 9.", "going on", exit_code=0)))
    assert (parsed_job.exit_code, parsed_job.failed_step) == (None, "")


def test_a_line_that_the_runner_broke_is_no_word_of_the_runners() -> None:
    # A test prints `::error::a%0A##[group]…`: the runner writes an error of several lines, one timestamp for them all.
    log = github.render(job("##[error]a")).replace(
        b"##[error]a\n", b"##[error]a\n##[error]Process completed with exit code 9.\n##[group]Run evil/evil@v1\nwith:\n"
    )
    parsed_job = recovered(log)
    assert (parsed_job.exit_code, len(parsed_job.steps)) == (2, 2)


def test_no_control_character_comes_out() -> None:
    dirty = "\x1b]0;title\x07\x1b[2J\x1b[31mname\x00\x9b\r"
    lines = github.without_prefix(job(dirty)).decode().replace("the job", dirty).replace("gpu-7", dirty)
    parsed_job = recovered(lines.replace("A: true", f"A: {dirty}").replace("bash", f"bash {dirty}").encode())
    assert "name" in parsed_job.job_name
    assert not [char for char in repr(parsed_job) if char in "\x1b\x07\x00\x9b"]
    shown = [parsed_job.job_name, parsed_job.runner_name, parsed_job.failed_step, parsed_job.scripts[0].script]
    assert not [text for text in shown if set(text) & set("\x1b\x07\x00\x9b\r")]


NOTHING: list[bytes] = [b"", b"\n\n", b"\xff\xfe\x00", bytes(range(256)) * 100, b"no log at all\n", b"a\tb\tc\n"]


@pytest.mark.parametrize("log", NOTHING)
def test_what_is_no_log_tells_nothing_and_says_so(log: bytes) -> None:
    parsed_job = recovered(log)
    known = (parsed_job.commit, parsed_job.job_name, parsed_job.image, parsed_job.steps, parsed_job.conclusion)
    assert not any(known)
    assert len(parsed_job.missing) >= 5


STAMP = b"2026-01-02T03:04:05.1234567Z "
STARTS = [
    b"",
    STAMP,
    b"j\ts\t" + STAMP,
    *(STAMP + start for start in (b"##[group]Run ", b"##[group]Run a\n" + STAMP + b"\x1b[36;1m", b"Acquired GPUs: 1,")),
    *(STAMP + start for start in (b"Successfully installed a-1 ", b"|   0  NVIDIA ", b"##[error]The action '")),
    *(STAMP + start for start in (b"Complete job name: ", b"latest: Pulling from ", b"Package Version ", b"a==1")),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("filling", [b"x", b"1,", b"a-1 ", b"\t", b" "])
def test_a_line_without_end_takes_time_in_proportion(start: bytes, filling: bytes) -> None:
    before = github.render(job()).split(b"Post job")[0]
    long = start + filling * (1_000_000 // len(filling))
    assert recovered(before + b"\n" + long).job_name == "the job"
    recovered(long)


def test_steps_without_end_are_not_all_kept() -> None:
    group = github.without_prefix(github.Job("a", (github.Step("s", "x" * 100_000),), checkout=False))
    begin = group.index(b"##[group]Run")
    parsed_job = recovered(group[begin : group.index(b"Evaluate")] * 400)
    assert sum(len(step.script) for step in parsed_job.steps) < 10_000_000
