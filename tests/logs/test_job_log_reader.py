"""The lines that readers of a log get tell them what all of its lines would, and are few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs import job_parser
from ci_tasks.logs.job_lines import split_lines
from ci_tasks.logs.job_parser import AFTER_STEPS, JobLogReader
from ci_tasks.logs.lines import read

SHA, DIGEST = "0123456789" * 4, f"sha256:{'0123456789abcdef' * 4}"
SCRIPT = ("##[group]Run docker run x", "\x1b[36;1mdocker run x\x1b[0m", "shell: /usr/bin/bash", "##[endgroup]")
CHECKOUT = ("##[group]Run actions/checkout@v4", "with:", "  repository: a/b", "##[endgroup]")
RUN = "date; docker run lmsys/sglang:1.2 x"
PULL = (f"##[group]Run {RUN}", f"\x1b[36;1m{RUN}\x1b[0m", "##[endgroup]")
PULLED = ("1.2: Pulling from lmsys/sglang", f"Digest: {DIGEST}", "Status: Downloaded newer image for lmsys/sglang:1.2")
LISTING = ("Package    Version", "---------- -------", "torch      2.5.1", "numpy      1.26", "done")
TEXTS = (
    *(*SCRIPT, *CHECKOUT, *LISTING),
    *("##[group]Run pytest", "##[group]Starting job container", "##[group]Checking docker version", "env:"),
    *("##[error]Process completed with exit code 1.", "##[error]The operation was canceled.", "##[error]boom"),
    "##[error]The runner has received a shutdown signal. This can happen when the runner service is stopped.",
    "##[error]The action 'Execute' has timed out after 30 minutes.",
    *(beginning.decode() for beginning in AFTER_STEPS),
    "Job is about to start running on the runner: h100 (Organization)",
    *("Current runner version: '2.328.0'", "Complete job name: unit (1)", "Runner name: 'h100'"),
    "Job defined at: a/b/.github/workflows/ci.yml@refs/heads/main",
    *("Syncing repository: a/b", "Working directory is '/w'", f"HEAD is now at {SHA[:9]} Merge {SHA} into {SHA}"),
    *("[command]/usr/bin/git log -1 --format=%H", SHA, f"[command]/usr/bin/git fetch origin +{SHA}:refs/pull/7/merge"),
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
    piece = st.sampled_from([(text,) for text in (*TEXTS, LONG)] + [SCRIPT, CHECKOUT, LISTING, PULL, PULLED])
    texts = [text for texts in draw(st.lists(piece, max_size=40)) for text in texts]
    lines = [draw(st.sampled_from(prefixes)) + text for text in texts]
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
    """All but when a part ended, which for all parts but the last is the time of its last line with a word."""
    return {part: replace(job, ended=None) for part, job in reader.jobs.items()}, reader.failed


@settings(max_examples=200)
@given(logs(), st.integers(20, 600))
def test_they_tell_of_a_job_and_of_a_logs_jobs_what_all_lines_tell(log: bytes, size: int) -> None:
    with patch.object(job_parser, "_HEAD", 200):
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
