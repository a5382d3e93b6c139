"""Job logs as GitHub's runner writes them, made from what is to be in them. For tests, here and of the flows.

log = render(Job("e2e-test-ckpt (4, test_a.py)", (Step("Execute", script, output=(*pulled(IMAGE, DIGEST), "boom"),
             exit_code=1),), commit="0123…"))
from_gh(job)            # as `gh run view --log` prints it; failed=True as `--log-failed` does
without_prefix(job)     # as it is when somebody pasted it
zipped({"0_a.txt": log})  # the zip of a run
recovered(log)          # what the reader makes of it
"""

from __future__ import annotations

import datetime
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci_tasks.logs.job_facts import RecoveredJob
from ci_tasks.logs.job_parser import JobLogReader
from ci_tasks.logs.lines import read

CYAN, RESET, BOM = "\x1b[36;1m", "\x1b[0m", "\ufeff"
BASH = "/usr/bin/bash --noprofile --norc -e -o pipefail {0}"
STARTED = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
INPUTS = "  repository: {job.repository}\n  token: ***\n  fetch-depth: 1\n  clean: true"


SET_UP = (Path(__file__).parent / "set_up.txt").read_text().rstrip("\n")
CONTAINERS = (Path(__file__).parent / "containers.txt").read_text().rstrip("\n")
CHECKED_OUT = (Path(__file__).parent / "checked_out.txt").read_text().rstrip("\n")


@dataclass(frozen=True)
class Step:
    """It ends well unless it has an exit code, ran into its `timeout` of so many minutes, or was cancelled. `output` is
    what its program prints, str or bytes."""

    name: str
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str | bytes, ...] = ()
    exit_code: int = 0
    timeout: int = 0
    cancelled: bool = False
    shell: str = BASH

    @property
    def failed(self) -> bool:
        return bool(self.exit_code or self.timeout or self.cancelled)


@dataclass(frozen=True)
class Job:
    """A job of a pull request if `pull_request` is set, else of main. `container` is the job's `container:` image, and
    `digest` what its pull shows."""

    name: str
    steps: tuple[Step, ...]
    repository: str = "acme/trainer"
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    pull_request: int | None = None
    merge: tuple[str, str] = ("a" * 40, "b" * 40)
    runner_name: str = "gpu-7"
    workspace: str = "/home/ci/_work/trainer/trainer"
    container: str = ""
    options: str = ""
    digest: str = ""
    checkout: bool = True

    @property
    def ref(self) -> str:
        return f"refs/pull/{self.pull_request}/merge" if self.pull_request else "refs/heads/main"


Line = tuple[str, bytes, int]  # the step, the text, and the number of the line; 0 where a line goes on in this one


def render(job: Job) -> bytes:
    """The raw job log."""
    return BOM.encode() + b"".join(_stamp(number) + text + b"\n" for _, text, number in _lines(job))


def from_gh(*jobs: Job, failed: bool = False, unknown: bool = False) -> bytes:
    """What `gh run view` prints of the jobs: with `failed` only the steps that failed, with `unknown` without their
    names. Every step's log begins with a byte order mark."""
    printed = b""
    for job in jobs:
        bad = {step.name for step in job.steps if step.failed}
        last = None
        for step, text, number in _lines(job):
            if not failed or step in bad:
                mark = BOM if step != last else ""
                printed += f"{job.name}\t{'UNKNOWN STEP' if unknown else step}\t{mark}".encode()
                printed += _stamp(number) + text + b"\n"
                last = step
    return printed


def without_prefix(job: Job) -> bytes:
    return b"".join(text + b"\n" for _, text, _ in _lines(job))


def zipped(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


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


def _stamp(number: int) -> bytes:
    """Of each line another."""
    moment = STARTED + datetime.timedelta(milliseconds=number)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}0Z ".encode() if number else b""


def _lines(job: Job) -> Iterator[Line]:
    number = 0
    for step, is_runner, texts in _spoken(job):
        for text in texts:
            raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            first, *rest = raw.split(b"\n") if is_runner else [raw]
            number += 1
            yield step, first, number
            yield from ((step, more, 0) for more in rest)


def _spoken(job: Job) -> Iterator[tuple[str, bool, Iterable[str | bytes]]]:
    """In which step, whether it is the runner, in whose lines a newline may stand, and what is said."""
    yield "Set up job", True, SET_UP.format(job=job).split("\n")
    if job.container:
        yield "Initialize containers", True, _containers(job)
    name = "CheckoutParser repository"
    if job.checkout:
        inputs = INPUTS.format(job=job).split("\n")
        yield name, True, ["##[group]Run actions/checkout@v4", "with:", *inputs, "##[endgroup]"]
        yield name, False, _checked_out(job)
    for step in job.steps:
        yield step.name, True, _header(step)
        yield step.name, False, [*step.output, *_ending(step)]
    if job.checkout:
        yield f"Post {name}", True, ["Post job cleanup.", "[command]/usr/bin/git version"]
    yield "Complete job", True, ["Evaluate and set job outputs", "Cleaning up orphan processes"]


def _containers(job: Job) -> list[str]:
    service, own = "\n".join(pulled("redis:7", "sha256:" + "9" * 64)), pulled(job.container, job.digest)
    text = CONTAINERS.format(job=job, service=service, own="\n".join(own) if job.digest else "")
    return [line for line in text.split("\n") if line]


def _checked_out(job: Job) -> list[str]:
    tracking = job.ref.replace("refs/pull/", "refs/remotes/pull/").replace("refs/heads/", "refs/remotes/origin/")
    subject = f"Merge {job.merge[0]} into {job.merge[1]}" if job.pull_request else "A change"
    short, branch = job.commit[:7], tracking.removeprefix("refs/remotes/")
    return CHECKED_OUT.format(job=job, short=short, tracking=tracking, branch=branch, subject=subject).split("\n")


def _header(step: Step) -> Iterator[str]:
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
