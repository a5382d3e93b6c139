"""slime's conventions: how an entry of its matrix names a test file, arguments and GPUs.

They were the same in every revision of its workflow: an object under `info` with `test_file`, `num_gpus` and, since the
arguments left the file's string, `test_args`. A path that does not begin with `tests/` is meant from there (the Execute
script of the workflow says so). SGLang's and Miles' older workflows use the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.errors import UnknownName
from ci_tasks.model import Job, Row, Workflow
from ci_tasks.workflow.naming import Described, label_of, means

WORKFLOW = ".github/workflows/pr-test.yml"
TEMPLATE = WORKFLOW + ".j2"
CHANGED = "changed"


def describe(combination: Mapping[str, Any]) -> Described:
    """The test, its arguments and its GPUs; (None, "", None) for a matrix that is not slime's."""
    info = combination.get("info", combination)
    if not isinstance(info, Mapping) or not info.get("test_file"):
        return Described(None, "", _count(info.get("num_gpus")) if isinstance(info, Mapping) else None)
    file, *inline = str(info["test_file"]).split(None, 1) or [""]
    args = " ".join(part.strip() for part in (*inline, str(info.get("test_args") or "")) if part.strip())
    return Described(file if file.startswith("tests/") else f"tests/{file}", args, _count(info.get("num_gpus")))


def job_of(workflow: Workflow, label: str) -> Job:
    """The job of a label, or of a job's full name. Raises UnknownName."""
    for job in workflow.jobs.values():
        if means(label, job.id):
            return job
    raise UnknownName("label", label, [label_of(name) for name in workflow.jobs], where=workflow.path)


def select(found: list[Row], only: str | None, label: str) -> list[Row]:
    """The rows whose name has one of `only`'s parts in it, which commas divide. UnknownName for a part of none."""
    parts = [part.strip() for part in (only or "").split(",") if part.strip()]
    for part in parts:
        if not any(part in row.row for row in found):
            raise UnknownName("row", part, [row.row for row in found], where=f"label {label}")
    return [row for row in found if not parts or any(part in row.row for part in parts)]


def _count(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
