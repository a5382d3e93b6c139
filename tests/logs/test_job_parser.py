"""A job's log → everything that it tells of the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs import job_parser
from ci_tasks.logs.job_facts import RecoveredJob
from ci_tasks.logs.job_lines import split_lines
from ci_tasks.logs.job_parser import AFTER_STEPS, JobLogReader
from ci_tasks.logs.lines import read
from tests.logs import github_format as github
from tests.logs.github_format import recovered

IMAGE, DIGEST, OTHER = "acme/trainer:latest", "sha256:" + "d" * 64, "sha256:" + "0" * 64
DOCKER = (
    'docker run --pull=always --rm \\\n  -e TEST_FILE="test_a.py" --gpus all \\\n  acme/trainer:latest bash -c "\n  x"'
)
NAME = "e2e-test-ckpt (4, test_a.py, --async-save)"


def step(*output: str | bytes, script: str = DOCKER, **more: Any) -> Any:
    return github.Step("Execute", script, output=output, **more)


def job(*steps: Any, **more: Any) -> Any:
    return github.Job(NAME, steps or (step(),), **more)


def parsed(*steps: Any, **more: Any) -> RecoveredJob:
    return recovered(github.render(job(*steps, **more)))


def has(parsed_job: RecoveredJob, **facts: Any) -> None:
    assert {name: getattr(parsed_job, name) for name in facts} == facts


def test_the_set_up_and_the_checkout_give_job_runner_and_commit() -> None:
    given = {
        "repository": "acme/x",
        "commit": "c" * 40,
        "workspace": "/w/x",
        "pull_request": 71,
        "runner_name": "box 7",
    }
    merge = {"merge_head": "1" * 40, "merge_base": "2" * 40, "ref": "refs/pull/71/merge"}
    has(parsed(merge=("1" * 40, "2" * 40), **given), job_name=NAME, **given, **merge)
    has(parsed(commit="c" * 40), ref="refs/heads/main", pull_request=None, merge_head="")
    has(recovered(b"Complete job name: a\nComplete job name: b\n"), job_name="a")


CHECKOUT = b"##[group]Run actions/checkout@v2\nwith:\n  repository: a/b\n##[endgroup]\n"
COMMITS: list[tuple[bytes, str]] = [
    (b"[command]/usr/bin/git log -1 --format='%H'\n'" + b"a" * 40 + b"'\n", "a" * 40),
    (b"HEAD is now at abc1234 A change\n", "abc1234"),
    (b"[command]/usr/bin/git fetch --depth=1 origin +" + b"b" * 40 + b":refs/remotes/pull/3/merge\n", "b" * 40),
    # The whole commit wins over the short one, the checked out over the fetched.
    (b"HEAD is now at abc1234 x\n[command]git log -1 --format=%H\nabc1234" + b"0" * 33 + b"\n", "abc1234" + "0" * 33),
    (b"[command]/usr/bin/git fetch origin +" + b"b" * 40 + b":refs/x\nHEAD is now at bbbbbbb y\n", "b" * 40),
    # Submodules come after the code itself.
    (b"HEAD is now at 1111111 x\nHEAD is now at 2222222 y\n", "1111111"),
    (b"".join(b"[command]git log -1 --format=%H\n" + sha * 40 + b"\n" for sha in (b"a", b"b")), "a" * 40),
    (b"", ""),
]


@pytest.mark.parametrize(("output", "commit"), COMMITS)
def test_the_commit_is_found_in_what_every_version_of_checkout_prints(output: bytes, commit: str) -> None:
    assert recovered(CHECKOUT + output).commit == commit


SHA = b"c" * 40
REFS: list[tuple[bytes, str, int | None]] = [
    (b"git fetch --depth=1 origin +" + SHA + b":refs/remotes/pull/3/merge", "refs/pull/3/merge", 3),
    (b"git fetch origin +refs/heads/*:refs/remotes/origin/* +" + SHA + b":refs/remotes/pull/3/merge",
     *("refs/pull/3/merge", 3)),
    (b"git checkout --progress --force refs/remotes/pull/3/merge", "refs/pull/3/merge", 3),
    (b"git checkout --progress --force -B main refs/remotes/origin/main", "refs/heads/main", None),
    (b"git checkout --progress --force " + SHA, "", None),
]  # fmt: skip


@pytest.mark.parametrize(("command", "ref", "number"), REFS)
def test_the_ref_is_the_servers_name_of_what_was_checked_out(command: bytes, ref: str, number: int | None) -> None:
    parsed_job = recovered(CHECKOUT + b"[command]/usr/bin/" + command + b"\n")
    assert (parsed_job.ref, parsed_job.pull_request) == (ref, number)


PULLS: list[tuple[str, tuple[str, ...], str, str]] = [
    ("docker run img", github.pulled("img:latest", DIGEST), "img", DIGEST),
    (f"docker run img@{DIGEST}", (), f"img@{DIGEST}", DIGEST),
    ("docker run reg:5000/a/img", github.pulled("img:latest", DIGEST), "reg:5000/a/img", ""),  # another image's
    # A digest without an image on the next line is another's.
    ("docker run img:1", (f"Digest: {DIGEST}", "words", "Status: Image is up to date for img:1"), "img:1", ""),
    # The first pull of an image counts: what a container prints comes later.
    ("docker run img:1", (*github.pulled("img:1", DIGEST), *github.pulled("img:1", OTHER)), "img:1", DIGEST),
]  # fmt: skip


@pytest.mark.parametrize(("script", "output", "image", "digest"), PULLS)
def test_the_digest_is_that_of_the_pull_of_the_image_that_ran(
    script: str, output: tuple[str, ...], image: str, digest: str
) -> None:
    has(parsed(step(*output, script=script)), image=image, digest=digest)


def test_a_pull_in_a_step_of_its_own_and_that_of_a_jobs_container_count() -> None:
    pull = github.Step("Pull", f"docker pull {IMAGE}", output=github.pulled(IMAGE, DIGEST))
    has(parsed(pull, step("output")), image=IMAGE, digest=DIGEST)
    in_container = parsed(step(script="pytest"), container=IMAGE, options="--gpus all --shm-size=16g", digest=DIGEST)
    has(in_container, image=IMAGE, digest=DIGEST)


def test_the_script_and_environment_of_a_step_are_those_that_the_runner_shows_with_or_without_colour() -> None:
    env = {"A": "1", "EMPTY": "", "TWO": "one\n  B: two", "WANDB_API_KEY": "***", "URL": "http://u:***@h"}
    script = "\n  # a comment\nshell: is a word here\n\n##[endgroup]\necho 'x'  "
    parsed_job = parsed(step(script=script + "\n\n", env=env, shell="/usr/bin/python3 {0}"))
    (ran,) = parsed_job.scripts
    assert (ran.script, ran.env) == (script, env)
    assert ran.masked == ("WANDB_API_KEY", "URL")
    log = github.render(job(step(script="shell: x\npytest a", env={"A": "1"})))
    (ran,) = recovered(log.replace(b"\x1b[36;1m", b"").replace(b"\x1b[0m", b"")).scripts
    assert (ran.script, ran.env) == ("shell: x\npytest a", {"A": "1"})


ENDINGS: list[tuple[dict[str, Any], tuple[str, int | None, int | None], str]] = [
    ({"exit_code": 3}, ("failure", 3, None), "failure"),
    ({"timeout": 30}, ("timed out", None, 30), "failure"),
    ({"cancelled": True}, ("cancelled", None, None), "cancelled"),
    ({}, ("", None, None), "success"),
]


@pytest.mark.parametrize(("ending", "outcome", "conclusion"), ENDINGS)
def test_a_step_ends_as_the_runner_says(
    ending: dict[str, Any], outcome: tuple[str, int | None, int | None], conclusion: str
) -> None:
    parsed_job = recovered(github.from_gh(job(step("x", **ending))))
    last = parsed_job.steps[-1]
    assert (last.outcome, last.exit_code, last.minutes) == outcome
    failed = "Execute" if outcome[0] else ""
    has(parsed_job, conclusion=conclusion, exit_code=outcome[1], failed_step=failed)
    assert "timeout" not in ending or parsed(step("x", **ending)).failed_step == failed


def test_what_fails_need_not_be_a_script() -> None:
    log = github.render(job(container=IMAGE))
    broken = log[: log.index(b"create --name x_1")].rsplit(b"\n", 1)[0]
    broken += b"\n2026-01-02T03:04:05.0000000Z ##[error]Docker pull failed with exit code 1\n"
    has(recovered(broken), failed_step="Initialize containers", exit_code=None, conclusion="failure", digest="")
    action = recovered(CHECKOUT + b"##[error]fatal: repository not found\nPost job cleanup.\n")
    has(action, failed_step="Run actions/checkout@v2", exit_code=None)
    looked_at = parsed(step("##[error]something to look at", "fine"), step("fine", script="true"))
    has(looked_at, failed_step="", conclusion="")


INSTALLED = "Successfully installed nvidia-cublas-cu12-12.4.5 torch-2.9.0+cu128 typing_extensions-4.1"


def test_packages_are_those_that_pip_and_uv_print() -> None:
    packages = {"nvidia-cublas-cu12": "12.4.5", "torch": "2.9.0+cu128", "typing-extensions": "4.1", "ray": "2.5.1"}
    assert parsed(step("Successfully installed torch-1.0", INSTALLED, " + ray==2.5.1")).packages == packages


def test_every_form_of_a_log_tells_the_same() -> None:
    whole = job(step(*github.pulled(IMAGE, DIGEST), "boom", env={"A": "b\nc"}, exit_code=2), pull_request=9)
    raw = recovered(github.render(whole))
    assert raw == recovered(github.from_gh(whole, unknown=True))
    named = recovered(github.from_gh(whole))
    assert (named.failed_step, raw.failed_step) == ("Execute", "Run docker run --pull=always --rm \\")
    pasted = recovered(github.without_prefix(whole))
    began = github.STARTED.timestamp()
    assert raw.started and raw.ended and began < raw.started < raw.ended < began + 1
    assert (pasted.started, pasted.ended) == (None, None)
    same = ("job_name", "commit", "pull_request", "merge_head", "image", "digest", "exit_code", "packages")
    for field in same:
        assert getattr(raw, field) == getattr(named, field) == getattr(pasted, field)
    assert [step.script for step in raw.scripts] == [step.script for step in pasted.scripts]


def test_the_failed_steps_alone_tell_of_themselves_and_so_does_a_log_of_our_own() -> None:
    log = github.from_gh(job(step(*github.pulled(IMAGE, DIGEST), exit_code=2)), failed=True)
    alone = recovered(log)
    has(alone, job_name=NAME, failed_step="Execute", exit_code=2, digest=DIGEST, commit="", conclusion="failure")
    assert len(alone.missing) == 1 and "`gh run view --log` has all" in alone.missing[0]
    ours = b"##[group]Run Execute\ncd x\ndocker run img:1\n##[endgroup]\nboom\n"
    parsed_job = recovered(ours + b"\x1b[31m##[error]Process completed with exit code 4.\x1b[0m\n")
    has(parsed_job, failed_step="Run Execute", exit_code=4, image="img:1")
    assert parsed_job.scripts[0].script == "cd x\ndocker run img:1"


def test_the_runners_image_and_cis_python_are_known() -> None:
    image = "##[group]Runner Image\nImage: ubuntu-24.04\nVersion: 20250105.1.0\nIncluded Software: x\n##[endgroup]\n"
    log = github.without_prefix(job(step("Successfully set up CPython (3.11.4)")))
    parsed_job = recovered(image.encode() + log)
    has(parsed_job, runner_image="ubuntu-24.04 20250105.1.0", python="3.11.4")
    for line in ("Using CPython 3.12.1 interpreter at: /usr/bin/python3", "platform linux -- Python 3.12.1"):
        has(parsed(step(line, "Python 3.9.1")), python="3.12.1")


# -- what could not be recovered is listed in words, and only that -----------------------------------------------------


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
    ((b"%H", b" fetch "), ["the full commit"]),
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


# -- the lines that readers of a log get tell them what all of its lines would, and are few ----------------------------


SHA1, HASH = "0123456789" * 4, f"sha256:{'0123456789abcdef' * 4}"
SCRIPT = ("##[group]Run docker run x", "\x1b[36;1mdocker run x\x1b[0m", "shell: /usr/bin/bash", "##[endgroup]")
CHECKED_OUT = ("##[group]Run actions/checkout@v4", "with:", "  repository: a/b", "##[endgroup]")
RUN = "date; docker run lmsys/sglang:1.2 x"
PULL = (f"##[group]Run {RUN}", f"\x1b[36;1m{RUN}\x1b[0m", "##[endgroup]")
PULLED = ("1.2: Pulling from lmsys/sglang", f"Digest: {HASH}", "Status: Downloaded newer image for lmsys/sglang:1.2")
LISTING = ("Package    Version", "---------- -------", "torch      2.5.1", "numpy      1.26", "done")
TEXTS = (
    *(*SCRIPT, *CHECKED_OUT, *LISTING),
    *("##[group]Run pytest", "##[group]Starting job container", "##[group]Checking docker version", "env:"),
    *("##[error]Process completed with exit code 1.", "##[error]The operation was canceled.", "##[error]boom"),
    "##[error]The runner has received a shutdown signal. This can happen when the runner service is stopped.",
    "##[error]The action 'Execute' has timed out after 30 minutes.",
    *(beginning.decode() for beginning in AFTER_STEPS),
    "Job is about to start running on the runner: h100 (Organization)",
    *("Current runner version: '2.328.0'", "Complete job name: unit (1)", "Runner name: 'h100'"),
    "Job defined at: a/b/.github/workflows/ci.yml@refs/heads/main",
    *("Syncing repository: a/b", "Working directory is '/w'", f"HEAD is now at {SHA1[:9]} Merge {SHA1} into {SHA1}"),
    *(
        "[command]/usr/bin/git log -1 --format=%H",
        SHA1,
        f"[command]/usr/bin/git fetch origin +{SHA1}:refs/pull/7/merge",
    ),
    f"##[command]/usr/bin/docker pull image:1{'':3}",
    "##[command]/usr/bin/docker create --name x -e A=b image:2 tail",
    *(*PULL, *PULLED, "0123456789ab: Pull complete"),
    "Unable to find image 'lmsys/sglang:1.2' locally",
    "| NVIDIA-SMI 550.54      Driver Version: 550.54.14     CUDA Version: 12.4 |",
    "|   0  NVIDIA H100 80GB HBM3          On  |",
    "GPU 1: Tesla T4 (UUID: GPU-1)",
    *("Successfully installed a-1.0 b_c-2", "torch==2.5.1", " + torch==2.6"),
    *("", "step 1 loss 2.0", "a line of a program", "\r 10%|#  |\r 20%|## |"),
)
STAMPS = ("2026-01-02T03:04:05.1234567Z ", "2026-01-02T03:04:06.7654321Z ", "2026-01-02T03:04:07.123Z ")
PREFIXES = (
    *(*STAMPS, ""),
    *(f"job\t{step}\t{stamp}" for step in ("set up", "UNKNOWN STEP") for stamp in STAMPS),
    *(f"\ufeffjob\tset up\t{STAMPS[0]}", f"another\trun\t{STAMPS[1]}", "job\tset up\t"),
)
FORMS = st.sampled_from([PREFIXES[:2], PREFIXES[:4], PREFIXES[3:4], PREFIXES[4:6], PREFIXES[3:10], PREFIXES])
LONG = "x" * 40 + "\r" + "y" * 80


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    prefixes = draw(FORMS)
    piece = st.sampled_from([(text,) for text in (*TEXTS, LONG)] + [SCRIPT, CHECKED_OUT, LISTING, PULL, PULLED])
    texts = [text for texts in draw(st.lists(piece, max_size=40)) for text in texts]
    # Each form of the log's lines is at its head, which is all read.
    lines = [*draw(st.permutations(prefixes)), *(draw(st.sampled_from(prefixes)) + text for text in texts)]
    return ("\n".join(lines) + draw(st.sampled_from(["", "\n", "\r\n"]))).encode()


def chunks(log: bytes, size: int) -> Iterator[bytes]:
    return (log[at : at + size] for at in range(0, len(log), size))


def read_log(log: bytes, size: int) -> object:
    reader = JobLogReader()
    read(chunks(log, size), reader, block=size)
    return told(reader)


def read_every_line(log: bytes) -> object:
    reader = JobLogReader()
    for line in split_lines([log]):
        reader.take(line)
    reader.end([])
    return told(reader)


def told(reader: JobLogReader) -> object:
    """All but the times of a part, which may be those of its first and last line with a word."""
    return {part: replace(job, started=None, ended=None) for part, job in reader.jobs.items()}, reader.failed


@settings(max_examples=200)
@given(logs(), st.integers(20, 600))
def test_they_tell_of_a_job_and_of_a_logs_jobs_what_all_lines_tell(log: bytes, size: int) -> None:
    with patch.object(job_parser, "_HEAD", 600):
        assert read_log(log, size) == read_every_line(log)


def test_what_programs_print_is_passed_over() -> None:
    quiet = [f"step {number}: loss 2.{number}" for number in range(20_000)]
    texts = [*SCRIPT, *quiet, "##[error]Process completed with exit code 1."]
    log = "\n".join(STAMPS[0] + text for text in texts).encode()
    numbers: list[int] = []

    class Noted(JobLogReader):
        def feed(self, number: int, line: bytes, before: bytes) -> bool:
            numbers.append(number)
            return super().feed(number, line, before)

    with patch.object(job_parser, "_HEAD", 200):
        reader = Noted()
        read(chunks(log, 1 << 18), reader)
    (job,) = reader.jobs.values()
    assert job.exit_code == 1
    assert numbers[:4] == [1, 2, 3, 4]
    assert len(numbers) < 20
