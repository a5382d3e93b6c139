"""What the tests of trials share: a workflow with one label, and ^C."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def workflow(*tests: str) -> str:
    """One label, quick, with a row for each test file."""
    rows = ", ".join(f"{{test_file: {test}, num_gpus: 0}}" for test in tests)
    return f"""
on: {{pull_request: {{types: [labeled]}}}}
jobs:
  e2e-test-quick:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    strategy: {{matrix: {{info: [{rows}]}}}}
    steps:
      - uses: actions/checkout@v4
      - run: python3 tests/${{{{ matrix.info.test_file }}}}
"""


def press() -> None:
    """^C, as a run of rows takes it: it ends them and goes on."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
