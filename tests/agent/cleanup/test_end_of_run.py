"""The end of a run goes on whatever fails on its way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci_tasks.agent.cleanup import end_of_run
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("no file of a run")])
def test_what_cannot_be_masked_is_said_and_the_rest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is masked when it is fetched: the status says that it is not yet."""

    def fail(*_: object) -> str:
        raise error

    run = RunDir(str(tmp_path / "run"))
    os.makedirs(run.workspace)
    Path(run.plan).write_text(json.dumps({}))
    monkeypatch.setattr(end_of_run, "mask_run", fail)
    result = end_of_run.RunCleanup(run, Plan()).finish(succeeded=True)
    assert (result.masked, result.left) == (False, (f"secrets are not masked yet: {error}",))
    assert not os.path.exists(run.workspace)
