"""How GPUs stand for a request, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci_tasks.runner.gpu import locks, situation
from ci_tasks.runner.gpu.gpus import App, Gpu, Sight, pretended
from ci_tasks.runner.gpu.request import Request

if TYPE_CHECKING:
    from tests.runner.conftest import GpuBox


def _sight(*used: int, apps: tuple[App, ...] = ()) -> Sight:
    return Sight(tuple(Gpu(at, f"GPU-{at}", "H200", "580", mib, 143771) for at, mib in enumerate(used)), apps)


PROBLEMS = [
    (Request(8), _sight(0, 0, 0, 0), "this host has 4 GPUs, the job needs 8"),
    (Request(2), _sight(0), "this host has 1 GPU, the job needs 2"),
    (Request(4), _sight(0, 0, 0, 0), ""),
    (Request(1), _sight(50000), ""),  # in use now, not for ever
    (Request(9, total=8), pretended(16), "this host has 8 GPUs, the job needs 9"),
    (Request(1), Sight(problem="NVIDIA-SMI has failed"), "the GPUs of this host cannot be seen: NVIDIA-SMI has failed"),
]


@pytest.mark.parametrize(("request_", "sight", "words"), PROBLEMS, ids=[words or "met" for *_, words in PROBLEMS])
def test_a_request_that_can_never_be_met_is_told(request_: Request, sight: Sight, words: str) -> None:
    assert situation.problem(request_, sight) == words


def test_gpus_that_are_absent_or_in_use_are_not_fit() -> None:
    sight = _sight(4, 62464, 4, apps=(App("GPU-2", 7, 10, "x"),))
    assert situation.fit(Request(1, total=4), sight) == [0]
    assert situation.absent(Request(1, total=4), sight) == [3]


def test_every_obstacle_has_its_sentence(box: GpuBox, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(8, pattern=box.pattern)
    box.hold(0, 1, 3, CI_TASKS_RUN_DIR="/runs/batch/07")
    box.hold(4, shared=True)  # another run's fence, which says so itself
    app = App("GPU-5", 4242, 62464, "python train.py")
    sight = _sight(4, 4, 4, 4, 4, 62464, apps=(app,))
    assert situation.sentences(request, sight, ()) == [
        "GPUs 0-1, 3 held by run batch.07 for less than a minute",
        "GPU 5: 61 GiB in use by pid 4242 (python train.py) without a lock",
        "GPUs 6-7 do not exist here",
    ]
    monkeypatch.setattr(locks, "LOCKS", "/no/such/file")
    assert situation.sentences(request, sight, ())[0] == "GPUs 0-1, 3 held by somebody"


def test_what_we_hold_ourselves_is_no_obstacle(box: GpuBox) -> None:
    descriptor = locks.try_lock(box.lock(0))
    assert descriptor is not None
    assert situation.sentences(Request(1, pattern=box.pattern, total=1), pretended(1), {0}) == []
    locks.release(descriptor)


def test_the_one_who_collects_is_named(box: GpuBox) -> None:
    request = Request(1, pattern=box.pattern)
    assert situation.collector(request) == ""
    box.hold(request.turn, CI_TASKS_RUN_DIR="/runs/batch/07")
    assert situation.collector(request) == "run batch.07 for less than a minute is collecting GPUs first"
