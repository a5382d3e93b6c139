"""What holds of any log: what was rendered into CI's format comes back out of it, and nothing makes the reader fail."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.features.ci_logs.parse.job_parser import AFTER_STEPS, parse_job
from ci_tasks.features.ci_logs.parse.split_lines import split_lines
from tests.features.ci_logs.parse import github_format as github

# Text without what ends a line (for .NET too), without control characters, which are not shown, and without a byte
# order mark, with which GitHub begins a page: it is none of a line's text.
NOT_IN_LINES: dict[str, Any] = {"exclude_categories": ("Cc", "Cs", "Zl", "Zp"), "exclude_characters": "*\ufeff"}
LINE = st.text(st.characters(**NOT_IN_LINES), max_size=30)
WORD = st.text("abcXYZ019_-./", min_size=1, max_size=20)
SHA = st.text("0123456789abcdef", min_size=40, max_size=40)
NAMES = st.text("ABCdef_", min_size=1, max_size=8)
SCRIPTS = st.lists(LINE | st.sampled_from(["shell: x", "env:", "##[endgroup]", "##[group]Run x", "with:"]), min_size=1)
# A script of blanks alone is none that GitHub runs.
SCRIPT = SCRIPTS.map("\n".join).filter(lambda text: text.strip() != "")
ENV = st.dictionaries(NAMES, st.lists(LINE, min_size=1, max_size=3).map("\n".join), max_size=3)
# What programs print, with much that looks like the runner's words; what comes after the last step, it alone says.
SPOKEN = (
    LINE.map(str.encode) | st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))
).filter(lambda line: not line.startswith(AFTER_STEPS))
TRICKS = st.sampled_from(
    [
        b"##[group]Run x",
        b"##[endgroup]",
        b"##[error]boom",
        b"Complete job name: lie",
        b"HEAD is now at 1234567",
        b"env:",
    ]
)


@st.composite
def jobs(draw: st.DrawFn) -> Any:
    scripts = draw(st.lists(SCRIPT, min_size=1, max_size=3))
    codes = [*[0] * (len(scripts) - 1), draw(st.integers(1, 255))]
    steps = []
    for number, (script, code) in enumerate(zip(scripts, codes, strict=True)):
        output, seconds = tuple(draw(st.lists(SPOKEN | TRICKS, max_size=5))), draw(st.integers(1, 5000))
        steps.append(
            github.Step(f"Step {number}", script, env=draw(ENV), output=output, exit_code=code, seconds=seconds)
        )
    return github.Job(
        draw(LINE.filter(lambda text: text.strip() == text != "")),
        tuple(steps),
        repository=f"{draw(NAMES)}/{draw(NAMES)}",
        commit=draw(SHA),
        pull_request=draw(st.none() | st.integers(1, 99999)),
        merge=(draw(SHA), draw(SHA)),
        runner_name=draw(WORD),
        started=draw(st.integers(0, 2**32)),
    )


def recovered(log: bytes) -> Any:
    return parse_job(split_lines(log.splitlines(keepends=True) if b"\r" not in log else log.split(b"\n")))


@settings(max_examples=60)
@given(jobs())
def test_what_went_into_a_log_comes_out_of_it(job: Any) -> None:
    parsed_job = recovered(github.render(job))
    for name in ("runner_name", "repository", "commit", "ref", "pull_request", "started"):
        assert getattr(parsed_job, name) == getattr(job, name)
    assert parsed_job.job_name == job.name
    if job.pull_request:
        assert (parsed_job.merge_head, parsed_job.merge_base) == job.merge
    assert [(script.script, script.env) for script in parsed_job.scripts] == [
        (step.script.rstrip("\n"), dict(step.env)) for step in job.steps
    ]
    assert (parsed_job.exit_code, parsed_job.conclusion) == (job.steps[-1].exit_code, "failure")


@settings(max_examples=60)
@given(jobs())
def test_gh_shows_the_same_and_the_steps_names(job: Any) -> None:
    parsed_job = recovered(github.from_gh(job))
    assert [script.name for script in parsed_job.scripts] == [step.name for step in job.steps]
    assert parsed_job.failed_step == job.steps[-1].name
    raw = recovered(github.render(job))
    assert [script.script for script in parsed_job.scripts] == [script.script for script in raw.scripts]
    assert (parsed_job.commit, parsed_job.exit_code, parsed_job.job_name) == (raw.commit, raw.exit_code, raw.job_name)


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60) | TRICKS | st.just(b"2026-01-02T03:04:05.1234567Z ##[group]Run a"), max_size=20))
def test_anything_is_read_without_failing(lines: list[bytes]) -> None:
    parse_job(split_lines(lines))
    assert len(list(split_lines(lines))) == len(lines)
