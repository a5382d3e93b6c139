"""plan.json's `gpu_locks`, read."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.runner.gpu.request import Request

NOTHING: list[Any] = [None, {}, {"count": 0, "by": "job"}]


@pytest.mark.parametrize("value", NOTHING)
def test_a_run_without_gpus_requests_nothing(value: Any) -> None:
    assert Request.from_plan(value) is None


def test_what_is_null_or_absent_is_as_in_ci() -> None:
    request = Request.from_plan({"count": 4, "by": "job", "simulated": None, "of_a_later_version": 1})
    assert request == Request(4, "job", "/dev/shm/custom_gpu_lock_{gpu_id}.lock", 8, None)
    assert request.path(5) == "/dev/shm/custom_gpu_lock_5.lock"
    assert request.turn == "/dev/shm/ci-tasks-turn.lock"


def test_braces_elsewhere_in_the_path_are_kept() -> None:
    request = Request.from_plan({"count": 1, "pattern": "/a{b}/{0}/lock_{gpu_id}", "total": 2, "simulated": 2})
    assert request is not None
    assert request.paths() == {0: "/a{b}/{0}/lock_0", 1: "/a{b}/{0}/lock_1"}


@pytest.mark.parametrize("more", [{"pattern": "/dev/shm/lock"}, {"by": "magic"}])
def test_what_cannot_be_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="gpu_locks"):
        Request.from_plan({"count": 1, **more})
