"""The plan of a retry: what it takes from the run before, and what is its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.agent.containers.docker_argv import ContainerRules
from ci_tasks.agent.records import Checkout, Event, Plan, Retry
from ci_tasks.planning.planner import failed_step, retry_plan

OLD, NEW = Checkout("/c", "a" * 40, "b" * 40), Checkout("/c", "c" * 40, "d" * 40)
SCRIPT = f"#!/usr/bin/env bash\nset -uo pipefail\nexport GITHUB_SHA={'a' * 40}\n"
BEFORE = Plan(id="X.01", row="row", host="h", checkout=OLD, script=SCRIPT, workspace="/h/x/workspace", secrets=("KEY",))


@pytest.mark.parametrize(
    ("names", "step"),
    [
        ("started", 1),  # it was blocked before its first step
        ("started step step", 2),  # it was killed
        ("started step step,step failed,step ended", 2),  # a step of `if: always()` came after
    ],
)
def test_the_failed_step_is_the_last_that_began_before_one_failed(names: str, step: int) -> None:
    events = [Event(1.0, name) for part in names.split(",") for name in _names(part)]
    assert failed_step(BEFORE, events) == step
    again = replace(BEFORE, retry=Retry(("/h/w",), step=4))
    assert failed_step(again, events) == step + 3, "steps that a retry did not run count as well"


def _names(part: str) -> list[str]:
    return [part] if part == "step failed" else part.split()


def test_it_runs_the_same_script_with_the_new_commit_in_the_oldest_workspace_after_the_newest_run() -> None:
    first = retry_plan(BEFORE, id="Y.01", run_dir="/h/y", earlier_dir="/h/x", step=2, checkout=NEW)
    second = retry_plan(
        replace(first, script=first.script), id="Z.01", run_dir="/h/z", earlier_dir="/h/y", step=3, checkout=OLD
    )
    assert second.script.count("_first=") == 1
    assert "\n_first=3 _kept=/h/x _before=/h/y\n" in second.script
    assert f"GITHUB_SHA={'c' * 40}" in first.script
    assert second.retry == Retry(("/h/x", "/h/y"), 3, NEW.commit, NEW.tree)
    assert (second.workspace, second.secrets, second.retry_of, second.keep) == (
        "/h/x/workspace",
        ("KEY",),
        "Y.01",
        True,
    )
    assert [item.here for item in second.deviations if item.what == "retried"] == ["steps 3.. of run Y.01"]


def test_its_containers_are_its_own() -> None:
    rules = ContainerRules(
        name="ci-tasks-X", labels={"ci-tasks.dir": "/h/x"}, env={"CI_TASKS_RUN_DIR": "/h/x", "A": "1"}
    )
    plan = retry_plan(
        replace(BEFORE, container=rules), id="Y.01", run_dir="/h/y", earlier_dir="/h/x", step=2, checkout=NEW
    )
    assert plan.container is not None
    assert plan.container.labels == {"ci-tasks.run": "Y.01", "ci-tasks.dir": "/h/y"}
    assert (plan.container.env["CI_TASKS_RUN_DIR"], plan.container.env["A"]) == ("/h/y", "1")
    assert plan.container.volumes == ("/h/y/artifacts",)
