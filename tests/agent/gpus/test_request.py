"""plan.json's `gpu_locks`, read."""

from __future__ import annotations

import pytest

from ci_tasks.agent.codec import RecordError, decode
from ci_tasks.agent.gpus.request import GpuRequest
from ci_tasks.agent.records import Plan


def test_what_is_null_or_absent_is_as_in_ci() -> None:
    value = {"count": 4, "by": "job", "simulated": None, "of_a_later_version": 1}
    request = decode(GpuRequest, value, where="plan.json")
    assert request == GpuRequest(4, "job", "/dev/shm/custom_gpu_lock_{gpu_id}.lock", 8, None)
    assert request.path(5) == "/dev/shm/custom_gpu_lock_5.lock"
    assert request.reservation_lock == "/dev/shm/ci-tasks-reservation.lock"


def test_braces_elsewhere_in_the_path_are_kept() -> None:
    request = GpuRequest(1, pattern="/a{b}/{0}/lock_{gpu_id}", total=2, simulated=2)
    assert request.paths() == {0: "/a{b}/{0}/lock_0", 1: "/a{b}/{0}/lock_1"}


@pytest.mark.parametrize("more", [{"pattern": "/dev/shm/lock"}, {"by": "magic"}])
def test_what_cannot_be_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(RecordError, match="gpu_locks"):
        decode(Plan, {"gpu_locks": {"count": 1, **more}}, where="plan.json")
