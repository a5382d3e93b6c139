"""A failure's signature is its identity: the same in every run of it, and no other failure has it.

The gallery's numbers, process ids, ports, times and order of ranks are new in each run, so this is tried on real runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ci_tasks.logs.triage.log_triage import triage

SAMPLE = Path(__file__).parents[3] / "examples/tiny-slime"
FAILURES = ["oom", "nccl-timeout", "engine", "kl", "hang", "disk", "import"]


def run(failure: str) -> tuple[int, bytes]:
    """Exit code and output of a failure, without ci-tasks."""
    done = subprocess.run(
        [sys.executable, "tests/test_tiny_gallery.py", "--failure", failure],
        cwd=SAMPLE,
        env={**os.environ, "PYTHONPATH": str(SAMPLE), "TINY_STEP_SECONDS": "0", "TINY_FLAKE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_runs_of_one_failure_have_one_signature_and_no_two_failures_share_it() -> None:
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(run, FAILURES * 2))
    assert all(code != 0 for code, _ in ended), "every run fails"
    assert len({output for _, output in ended}) == len(ended), "no two outputs are equal, or this would prove little"
    signs = [triage(output.splitlines(keepends=True), exit_code=code).signature for code, output in ended]
    assert signs[: len(FAILURES)] == signs[len(FAILURES) :]
    assert len({*signs} - {""}) == len(FAILURES)
