"""A host whose clock is an hour wrong, over real SSH: what the client says of its runs is by the client's own clock."""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.parts import Missing
from tests.parts.clock import HostClock

HOUR = 3600
HALF_AN_HOUR_IN_DAYS = f"{0.5 / 24:.4f}"
SLACK_S = 3.0  # a smaller difference of clocks is not told from the way to the host


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "behind"])
def box(request: pytest.FixtureRequest, sshd: Any, tmp_path: Path) -> Any:
    """Its clock is an hour off."""
    try:
        clock = HostClock(tmp_path / "clock")
    except Missing as missing:
        support.cannot(str(missing))
    clock.set_ahead(request.param)
    box = sshd.start("box", more=clock.sshd_config)
    assert abs(float(box.run("date +%s")) - time.time() - request.param) < HOUR / 2, "the host's clock is wrong"
    return box


@pytest.fixture
def right(sshd: Any) -> Any:
    """Its clock is the client's."""
    return sshd.start("right")


@pytest.fixture
def far_person(person: Any, sshd: Any, box: Any, right: Any) -> Any:
    """With two hosts: `box` and `right`."""
    hosts: dict[str, Any] = {"local": {}}
    for name in ("box", "right"):
        hosts[name] = {"kind": "ssh", "address": name, "runtime": "none", "gpus": 8, "simulate": True}
    person.write_hosts(json.dumps({"hosts": hosts}))
    person.env.update(sshd.env, TINY_STEP_SECONDS="0.2")
    return person


@contextmanager
def all_gpus_locked(box: Any) -> Iterator[None]:
    """As by somebody else's job."""
    locks = box.home / ".ci-tasks/simulated-gpus"
    locks.mkdir(parents=True)
    with ExitStack() as stack:
        for number in range(8):
            fcntl.flock(stack.enter_context((locks / f"custom_gpu_lock_{number}.lock").open("a")), fcntl.LOCK_EX)
        yield


def statuses(host: Any) -> list[Path]:
    return list(host.home.glob(".ci-tasks/runs/*/*/status.json"))


def is_waiting(status: Path) -> bool:
    return bool(json.loads(status.read_text())["waiting"])


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def test_times_durations_waits_and_gpu_use_are_the_client_s(far_person: Any, box: Any, right: Any) -> None:
    before = time.time()
    with all_gpus_locked(box):
        client = far_person.start("remote", "--host", "box,right", "ckpt")
        support.until(lambda: any(map(is_waiting, statuses(box))), "a row waits there")
        support.until(lambda: statuses(right), "a row runs on the other host")
        waiting_since = time.time()
        time.sleep(1)
        waited = time.time() - waiting_since
    out, err = client.communicate(timeout=120)
    after = time.time()
    assert client.returncode == 0, out + err
    records = far_person.records()
    assert {record["host"] for record in records} == {"box", "right"}, out + err
    for record in records:
        started, ended = seconds(record["started_at"]), seconds(record["ended_at"])
        assert before - SLACK_S <= started <= ended <= after + SLACK_S
        assert record["timings"]["seconds"] <= after - before
        assert 0 <= record["timings"]["queued"] <= after - before
    assert max(record["timings"]["queued"] for record in records if record["host"] == "box") >= waited
    (wall,) = re.findall(r"Wall time: (\d+) s", out)
    assert int(wall) <= after - before + 1
    (busy,) = re.findall(r"GPUs busy: box (\d+) %, right (\d+) %", out)
    assert all(0 < int(percent) <= 100 for percent in busy)


def test_runs_and_clean_count_from_now(far_person: Any, box: Any, tmp_path: Path) -> None:
    far_person.write("tests/test_tiny_ckpt.py", "import sys\nsys.exit(3)\n")
    said = far_person.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--keep")
    assert said.code == 1, said.out + said.err
    assert len(far_person.ci_tasks("runs", "--since", "10m", "--json").json) == 1
    assert far_person.ci_tasks("runs", "--until", "10m", "--json").json == []

    colleague = support.Person(tmp_path / "colleague", far_person.checkout, dict(far_person.env))
    said = colleague.ci_tasks("clean", "--host", "box", "--days", HALF_AN_HOUR_IN_DAYS)
    assert "stays, it is somebody else's, and younger than --days" in said.out, said.out + said.err
    said = colleague.ci_tasks("clean", "--host", "box", "--days", "0")
    assert ": removed" in said.out, said.out + said.err
    assert not list(box.home.glob(".ci-tasks/runs/*/*"))

    far_person.ci_tasks("clean", "--days", HALF_AN_HOUR_IN_DAYS)
    assert len(far_person.records()) == 1
    assert ": removed" in far_person.ci_tasks("clean", "--days", "0").out
