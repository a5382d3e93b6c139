"""slime's conventions: how an entry of its matrix names a test file, arguments and GPUs.

They were the same in every revision of its workflow: an object under `info` with `test_file`, `num_gpus` and, since the
arguments left the file's string, `test_args`. A path that does not begin with `tests/` is meant from there (the Execute
script of the workflow says so). SGLang's and Miles' older workflows use the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.suite import ChangedRule, ChangedTests, MatrixTest, Suite, gpu_count

WORKFLOW = ".github/workflows/pr-test.yml"
# How CI finds changed tests and their GPUs, for revisions whose workflow has no job for it.
RULE = ChangedRule(
    ("tests/test_*.py", "tests/plugin_contracts/test_*.py"),
    statuses="AM",
    gpus_line=re.compile(r"^NUM_GPUS\s*=\s*\d+", re.ASCII),
    default_gpus=8,
)


def describe(combination: Mapping[str, Any]) -> MatrixTest:
    """The test, its arguments and its GPUs; (None, "", None) for a matrix that is not slime's."""
    info = combination.get("info", combination)
    if not isinstance(info, Mapping) or not info.get("test_file"):
        return MatrixTest(None, "", gpu_count(info) if isinstance(info, Mapping) else None)
    file, *inline = str(info["test_file"]).split(None, 1) or [""]
    args = " ".join(part.strip() for part in (*inline, str(info.get("test_args") or "")) if part.strip())
    return MatrixTest(file if file.startswith("tests/") else f"tests/{file}", args, gpu_count(info))


def matches(workflow: Workflow) -> bool:
    """Whether it is slime's workflow, or one that names tests as slime does."""
    if workflow.path in (WORKFLOW, f"{WORKFLOW}.j2"):
        return True
    return any("test_file" in entry for job in workflow.jobs.values() for entry in _entries(job.matrix))


def _entries(matrix: Any) -> Iterator[Mapping[str, Any]]:
    for values in matrix.values() if isinstance(matrix, Mapping) else ():
        yield from (entry for entry in values if isinstance(entry, Mapping)) if isinstance(values, list) else ()


def changed_matrix(files: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The matrix for changed test files, path → text. A path is given from `tests/`, as every matrix of slime does."""
    gpus_of = {path.removeprefix("tests/"): RULE.gpus_of(text) for path, text in files.items()}
    return {"info": [{"test_file": path, "num_gpus": gpus} for path, gpus in gpus_of.items()]}


_CHANGED = ChangedTests("changed", "e2e-test-changed", "changed-detect", RULE, changed_matrix)
_PACKAGES = ("slime", "slime_plugins")
SUITE = Suite("slime", WORKFLOW, "slime", packages=_PACKAGES, changed=_CHANGED, matches=matches, describe=describe)
