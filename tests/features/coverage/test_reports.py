"""A coverage report for people: markdown for an issue."""

from __future__ import annotations

import re

from ci_tasks.features.coverage.labels import CheckoutCoverage, checkout_coverage
from ci_tasks.features.coverage.report import coverage_report
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.workflow.model import Row

SOURCE = """
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some|<b>1B</b>*"
U.execute_train("--ci-test --colocate", 8, None)
"""
FILES = {"tests/test_a.py": SOURCE}


def covered(*args: str) -> CheckoutCoverage:
    rows = [
        Row("a", "job-a", "run-a", f"a{arg}", "tests/test_a.py", arg, 8, "i:1", {}, "self-hosted", None) for arg in args
    ]
    record = LaunchRecorder(HELPERS, FILES.get).record
    return checkout_coverage("owner/name at 1234", "pr-test.yml", rows, FILES.get, record, {})


def test_markdown_has_a_table_whose_cells_hold() -> None:
    text = coverage_report(covered(""))
    (line,) = [line for line in text.splitlines() if line.startswith("| `tests/test_a.py`")]
    assert len(re.split(r"(?<!\\)\|", line)) == 5, "three cells"
    assert "Some\\|&lt;b>1B&lt;/b>\\* dense, GRPO, colocated" in line
    assert "owner/name at 1234" in text and "(nothing was executed)" in text
