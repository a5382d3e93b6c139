"""A home of its own, and runs in it as they lie there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import processes
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results import index, store
from tests.parts.json_files import write_json

Make = Callable[..., RunDir]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.HOME_ENV, str(tmp_path / "home"))
    index._warned.clear()
    return tmp_path / "home"


@pytest.fixture
def make(home: Path) -> Make:
    """A run directory; `status` is that of its record, or `running` and `planned`, which have none."""

    def run(
        batch: str = "20260101-120000-ckpt",
        number: int = 1,
        *,
        status: str = "passed",
        seconds: float = 10.0,
        queued: float | None = 0.0,
        commit: str = "abc0",
        tree: str = "t1",
        path: str = "/home/somebody/slime",
        silence: float | None = None,
        digest: str | None = None,
        **fields: Any,
    ) -> RunDir:
        made = RunDir(str(home / "runs" / batch / f"{number:02d}"))
        os.makedirs(made.path, exist_ok=True)
        day = f"{batch[:4]}-{batch[4:6]}-{batch[6:8]}"
        plan = {
            "id": f"{batch}.{number:02d}", "label": "ckpt", "row": f"row-{number}", "host": "h100a", "gpus": 8,
            "checkout": {"path": path, "commit": commit, "tree": tree, "dirty": []}, **fields,
        }  # fmt: skip
        write_json(made.plan, plan)
        if status == "running":
            write_json(made.status, {"state": "running", "started_at": 1.0, **processes.identity()._asdict()})
        elif status != "planned":
            began = None if status == "blocked" else f"{day}T12:00:00.000+00:00"
            attempt = {"id": plan["id"], "host": plan["host"], "status": status, "gpu_uuids": ["GPU-a", "GPU-b"]}
            attempt["image_digest"] = digest
            write_json(
                made.record,
                {
                    **plan, "status": status, "reason": fields.get("reason", ""), "exit_code": 0, "started_at": began,
                    "ended_at": began, "timings": {"seconds": seconds, "queued": queued, "silence": silence},
                    "evidence": {"kind": "script"}, "attempts": [attempt],
                },
            )  # fmt: skip
        return made

    return run
