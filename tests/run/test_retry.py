"""Which runs `retry` refuses, and what to do instead."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from ci_tasks.agent.records import Checkout, Plan, Status
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.errors import UsageError
from ci_tasks.records import RunRecord
from ci_tasks.run.label import retry

ID = "20260101-120000-l.01"


@pytest.mark.parametrize(
    ("status", "why"), [("passed", "passed: it has no failed step to run again"), ("failed", "was not kept: use")]
)
def test_a_run_that_nothing_was_kept_of_is_run_again_while_its_checkout_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, why: str
) -> None:
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))
    (checkout := tmp_path / "slime").mkdir()
    run = RunDir(str(tmp_path / "runs/20260101-120000-l/01"))
    Path(run.path).mkdir(parents=True)
    tree = Checkout(str(checkout), "c", "t", rev="v1")
    write_record(run.plan, Plan(id=ID, label="l", row="ckpt", host="sim", checkout=tree))
    write_record(run.status, Status("ended", end="exit", exit_code=0))
    write_record(run.record, RunRecord(ID, "l", "ckpt", "sim", status))
    with pytest.raises(UsageError, match=f"{ID} {why}") as refused:
        retry(ID, keep=False)
    command = f"ci-tasks remote --repo {shlex.quote(str(checkout))} --rev v1 --host sim l --only ckpt --keep"
    assert f"`{command}`" in refused.value.hint
    shutil.rmtree(checkout)
    with pytest.raises(UsageError) as refused:
        retry(ID, keep=False)
    assert refused.value.hint == "run the row in another checkout with --keep"
