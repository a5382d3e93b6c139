"""The rule by which slime's CI finds changed tests and their GPUs, for revisions whose workflow has no job for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ci_tasks.workflow.suite import ChangedRule

RULE = ChangedRule(
    ("tests/test_*.py", "tests/plugin_contracts/test_*.py"),
    statuses="AM",
    gpus_line=re.compile(r"^NUM_GPUS\s*=\s*\d+", re.ASCII),
    default_gpus=8,
)


def changed_matrix(files: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The matrix for changed test files, path → text. A path is given from `tests/`, as every matrix of slime does."""
    return {
        "info": [
            {"test_file": path.removeprefix("tests/"), "num_gpus": RULE.gpus_of(text)} for path, text in files.items()
        ]
    }
