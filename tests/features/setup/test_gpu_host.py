"""What a GPU host would add, from the rows that this machine does not run."""

from __future__ import annotations

from ci_tasks.features.setup.gpu_host import gpu_host_lines
from ci_tasks.workflow.model import Job, Row, Step


def row(label: str, gpus: int | None, image: str | None = "slime:latest") -> Row:
    return Row(label, f"e2e-{label}", None, "r", None, "", gpus, image, {}, "self-hosted", None)


def test_rows_needs_and_the_next_step_are_named() -> None:
    script = "docker run -v $GITHUB_WORKSPACE:/w -v /mnt/ci:/data \\\n  -v /mnt/ci/models:/root/models slime:latest x"
    jobs = {f"e2e-{label}": Job(f"e2e-{label}", 1, steps=(Step("Execute", 1, run=script),)) for label in ("a", "b")}
    lines = gpu_host_lines([row("a", 4), row("a", 8), row("b", 8)], jobs, "~/hosts.yaml", [])
    assert lines[:3] == [
        "A GPU host would add 3 rows: a 2, b 1.",
        "It needs docker, 4 to 8 GPUs, the image slime:latest, CI's data (/mnt/ci, or `mounts`).",
        "Name it in ~/hosts.yaml, then `ci-tasks doctor --host h100a` says what it lacks:",
    ]
