"""The rule by which slime's CI finds changed tests and their GPUs, for revisions whose workflow has no job for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Files added or modified since the merge base with the base branch; git's pathspecs, in which `*` also crosses `/`.
PATTERNS = ("tests/test_*.py", "tests/plugin_contracts/test_*.py")
DEFAULT_GPUS = 8
_NUM_GPUS = re.compile(r"(?m)^NUM_GPUS[^\S\n]*=[^\S\n]*([0-9]+)")  # grep sees one line at a time


def changed_matrix(files: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The matrix for changed test files, path → text. A path is given from `tests/`, as every matrix of slime does."""
    return {
        "info": [{"test_file": path.removeprefix("tests/"), "num_gpus": gpus_of(text)} for path, text in files.items()]
    }


def gpus_of(text: str) -> int:
    """The file's first `NUM_GPUS = n` at the beginning of a line, else CI's default of 8."""
    match = _NUM_GPUS.search(text)
    return int(match[1]) if match else DEFAULT_GPUS
