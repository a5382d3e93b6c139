"""Job logs as GitHub's runner writes them, made from what is to be in them. For tests, here and of the flows.

log = render(Job("e2e-test-ckpt (4, test_a.py)", (Step("Execute", script, output=(*pulled(IMAGE, DIGEST), "boom"),
             exit_code=1),), commit="0123…"))
from_gh(job)            # as `gh run view --log` prints it; failed=True as `--log-failed` does
without_prefix(job)     # as it is when somebody pasted it
recovered(log)          # what the reader makes of it
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci_tasks.logs.job_facts import RecoveredJob
from ci_tasks.logs.job_parser import JobLogReader
from ci_tasks.logs.lines import read

CYAN, RESET, BOM = "\x1b[36;1m", "\x1b[0m", "\ufeff"
BASH = "/usr/bin/bash --noprofile --norc -e -o pipefail {0}"
TICKS = 10_000_000  # in a second


SET_UP = (Path(__file__).parent / "set_up.txt").read_text().rstrip("\n")
CONTAINERS = (Path(__file__).parent / "containers.txt").read_text().rstrip("\n")
CHECKED_OUT = (Path(__file__).parent / "checked_out.txt").read_text().rstrip("\n")


@dataclass(frozen=True)
class Step:
    """A step with a script, or with `uses`. It ends well unless it has an exit code, ran into its `timeout` of so many
    minutes, or was cancelled. `output` is what its program prints, str or bytes."""

    name: str
    script: str = ""
    uses: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str | bytes, ...] = ()
    exit_code: int = 0
    timeout: int = 0
    cancelled: bool = False
    seconds: int = 1
    shell: str = BASH

    @property
    def failed(self) -> bool:
        return bool(self.exit_code or self.timeout or self.cancelled)


@dataclass(frozen=True)
class Job:
    """A job of a pull request if `pull_request` is set, else of main. `container` is the job's `container:` image, and
    `digest` what its pull shows. `started` is in seconds since the epoch."""

    name: str
    steps: tuple[Step, ...]
    repository: str = "acme/trainer"
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    pull_request: int | None = None
    merge: tuple[str, str] = ("a" * 40, "b" * 40)
    runner_name: str = "gpu-7"
    runner_version: str = "2.330.0"
    workspace: str = "/home/ci/_work/trainer/trainer"
    container: str = ""
    options: str = ""
    digest: str = ""
    checkout: bool = True
    started: int = 1_767_323_045

    @property
    def ref(self) -> str:
        return f"refs/pull/{self.pull_request}/merge" if self.pull_request else "refs/heads/main"


@dataclass(frozen=True)
class Line:
    """A line before it gets its prefix. `at` is in ticks since the job began, None where a line goes on in this one."""

    step: str
    text: bytes
    at: int | None


def render(job: Job) -> bytes:
    """The raw job log."""
    return BOM.encode() + b"".join(_stamp(job, line) + line.text + b"\n" for line in _lines(job))


def from_gh(*jobs: Job, failed: bool = False, unknown: bool = False) -> bytes:
    """What `gh run view` prints of the jobs: with `failed` only the steps that failed, with `unknown` without their
    names. Every step's log begins with a byte order mark."""
    printed = b""
    for job in jobs:
        bad = {step.name for step in job.steps if step.failed}
        last = None
        for line in _lines(job):
            if failed and line.step not in bad:
                continue
            step = "UNKNOWN STEP" if unknown else line.step
            mark = BOM if line.step != last else ""
            printed += f"{job.name}\t{step}\t{mark}".encode() + _stamp(job, line) + line.text + b"\n"
            last = line.step
    return printed


def without_prefix(job: Job) -> bytes:
    return b"".join(line.text + b"\n" for line in _lines(job))


def recovered(log: bytes) -> RecoveredJob:
    reader = JobLogReader()
    read([log], reader)
    return next(iter(reader.jobs.values()))


def pulled(image: str, digest: str) -> tuple[str, ...]:
    """What Docker prints when it pulls an image by its tag."""
    name, _, tag = image.partition(":")
    return (
        f"{tag or 'latest'}: Pulling from {name}",
        "0a1b2c3d4e5f: Pulling fs layer",
        "0a1b2c3d4e5f: Pull complete",
        f"Digest: {digest}",
        f"Status: Downloaded newer image for {name}:{tag or 'latest'}",
    )


def _stamp(job: Job, line: Line) -> bytes:
    if line.at is None:
        return b""
    whole, ticks = divmod(line.at, TICKS)
    moment = datetime.datetime.fromtimestamp(job.started + whole, datetime.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ticks:07d}Z ".encode()


def _lines(job: Job) -> Iterator[Line]:
    at = 0
    for step, texts, seconds in _spoken(job):
        for number, text in enumerate(texts):
            raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            begun, *rest = raw.split(b"\n") if step.own else [raw]
            yield Line(step.name, begun, at + (seconds * TICKS if number == len(texts) - 1 else number))
            yield from (Line(step.name, more, None) for more in rest)
        at += seconds * TICKS + TICKS // 10


@dataclass(frozen=True)
class _Speaker:
    name: str
    own: bool = True  # the runner, in whose lines a newline may stand


def _spoken(job: Job) -> Iterator[tuple[_Speaker, list[str | bytes], int]]:
    """Who says what, and how long it takes; the first line of each has the time at which it begins."""
    yield _Speaker("Set up job"), _set_up(job), 0
    if job.container:
        yield _Speaker("Initialize containers"), _containers(job), 0
    checkout = (Step("CheckoutParser repository", uses="actions/checkout@v4", inputs=_checkout_inputs(job)),)
    for step in (*(checkout if job.checkout else ()), *job.steps):
        yield _Speaker(step.name), list(_header(step)), 0
        git = _checked_out(job) if step.uses.startswith("actions/checkout") else ()
        output = [*git, *step.output, *_ending(step)]
        yield _Speaker(step.name, own=False), output, step.seconds
    if job.checkout:
        yield _Speaker("Post CheckoutParser repository"), ["Post job cleanup.", "[command]/usr/bin/git version"], 0
    yield _Speaker("Complete job"), ["Evaluate and set job outputs", "Cleaning up orphan processes"], 0


def _set_up(job: Job) -> list[str | bytes]:
    return list(SET_UP.format(job=job).split("\n"))


def _containers(job: Job) -> list[str | bytes]:
    service, own = "\n".join(pulled("redis:7", "sha256:" + "9" * 64)), pulled(job.container, job.digest)
    text = CONTAINERS.format(job=job, service=service, own="\n".join(own) if job.digest else "")
    return [line for line in text.split("\n") if line]


def _checkout_inputs(job: Job) -> dict[str, str]:
    return {"repository": job.repository, "token": "***", "fetch-depth": "1", "clean": "true"}


def _checked_out(job: Job) -> Iterator[str]:
    tracking = job.ref.replace("refs/pull/", "refs/remotes/pull/").replace("refs/heads/", "refs/remotes/origin/")
    subject = f"Merge {job.merge[0]} into {job.merge[1]}" if job.pull_request else "A change"
    short, branch = job.commit[:7], tracking.removeprefix("refs/remotes/")
    yield from CHECKED_OUT.format(job=job, short=short, tracking=tracking, branch=branch, subject=subject).split("\n")


def _header(step: Step) -> Iterator[str]:
    if step.uses:
        yield f"##[group]Run {step.uses}"
        if step.inputs:
            yield "with:"
            yield from (f"  {key}: {value}" for key, value in step.inputs.items() if value)
    else:
        yield "##[group]Run " + step.script.lstrip(" \t\r\n").split("\n")[0].split("\r")[0]
        yield from (f"{CYAN}{line}{RESET}" for line in step.script.rstrip("\n").split("\n"))
        yield f"shell: {step.shell}"
    if step.env:
        yield "env:"
        yield from (f"  {key}: {value}" for key, value in step.env.items())
    yield "##[endgroup]"


def _ending(step: Step) -> Iterator[str]:
    if step.exit_code:
        yield f"##[error]Process completed with exit code {step.exit_code}."
    if step.timeout:
        yield f"##[error]The action '{step.name}' has timed out after {step.timeout} minutes."
    if step.cancelled:
        yield "##[error]The operation was canceled."
