"""What nvidia-smi says, well and ill; which Xids are no fault of a GPU (`ci_tasks.results.gpu_samples`)."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor.check_results import CheckResult
from ci_tasks.features.doctor.gpus import gpus
from ci_tasks.hosts.queries import LOCKS_QUERY, LOCKS_QUERY_NAME
from tests.parts.processes import LocalQueryRunner


def of(results: list[CheckResult], topic: str) -> list[tuple[str, str]]:
    return [(result.status, result.text) for result in results if result.topic == topic]


@pytest.fixture
def answers(data: Any) -> dict[str, QueryAnswer]:
    """Eight GPUs: 2 and 4 in use, 6 held by something unseen; 4 and 5 locked by one process."""
    files = [{"gpu": gpu, "file": [0, 0x1B, 100 + gpu]} for gpu in range(8)]
    return {
        "gpus": QueryAnswer(0, data("smi-gpus-h100x8.txt")),
        "gpu health": QueryAnswer(0, data("smi-health-h100.txt")),
        "remapped rows": QueryAnswer(0, ""),
        "gpu processes": QueryAnswer(0, data("smi-apps.txt")),
        "processes": QueryAnswer(0, data("ps.txt")),
        LOCKS_QUERY_NAME: QueryAnswer(0, json.dumps({"files": files, "locks": data("proc-locks.txt")})),
        "dmesg": QueryAnswer(0, ""),
    }


@pytest.mark.parametrize(("said", "status"), [(None, "ok"), (8, "ok"), (4, "ok"), (9, "fault")])
def test_eight_gpus_are_a_line(read: Any, answers: dict[str, QueryAnswer], said: int | None, status: str) -> None:
    results = read(gpus(HostSpec("h", gpus=said)), answers)
    text = "8 x NVIDIA H100 80GB HBM3 (80 GiB), driver 535.183.01"
    assert of(results, "GPUs") == [(status, text + ("; hosts.yaml says 9" if status == "fault" else ""))]
    healthy = "no uncorrected ECC error is counted, no page or row pending"
    assert of(results, "GPU health") == [("ok", healthy)]


DRIVER_FAULTS = [
    (QueryAnswer(18, "file:smi-mismatch.txt"), "Driver/library version mismatch", "reboot"),
    (QueryAnswer(9, "file:smi-no-driver.txt"), "couldn't communicate", "modprobe nvidia"),
    (QueryAnswer(6, "No devices were found\n"), "No devices were found", "lspci"),
    # What half of it says is not believed: the GPU that fails is the result.
    (QueryAnswer(15, "file:smi-lost.txt"), "Unable to determine the device handle", "fallen off the bus"),
    (QueryAnswer(None, "", "no answer from nvidia-smi within 20 s"), "no answer", "stuck"),
    (QueryAnswer(3, "", "an odd one"), "an odd one", "run nvidia-smi there and read its output"),
    (QueryAnswer(None, "", "nvidia-smi: No such file or directory"), "no nvidia-smi", "install NVIDIA's driver"),
]


@pytest.mark.parametrize(("answer", "text", "step"), DRIVER_FAULTS)
def test_every_fault_of_the_driver_has_its_next_step(
    read: Any, data: Any, answer: QueryAnswer, text: str, step: str
) -> None:
    recorded = data(answer.out[5:]) if answer.out.startswith("file:") else answer.out
    for said, status in ((8, "fault"), (None, "warning" if answer.is_missing else "fault")):
        [result] = read(gpus(HostSpec("h", gpus=said)), {"gpus": QueryAnswer(answer.code, recorded, answer.err)})
        assert (result.status, text in result.text) == (status, True), result
        assert step in result.next_step or status == "warning"
        assert result.text.startswith("hosts.yaml says 8 GPUs; ") is (said == 8)


def test_each_sick_gpu_is_named_with_what_helps(read: Any, data: Any, answers: dict[str, QueryAnswer]) -> None:
    answers |= {
        "gpu health": QueryAnswer(0, data("smi-health-sick.txt")),
        "remapped rows": QueryAnswer(0, data("smi-remapped-sick.txt")),
    }
    results = read(gpus(HostSpec("h")), answers)
    reset = "while no process uses it: `sudo nvidia-smi --gpu-reset -i {}`, or reboot"
    pending = "only a reset retires the broken memory"
    assert [(r.status, r.text, r.next_step) for r in results if r.topic == "GPU health"] == [
        ("warning", "GPU 0 (0000:1b:00): 1 uncorrected ECC error since the driver was loaded", reset.format(0)),
        (
            "fault",
            "GPU 1 (0000:43:00): split by MIG, but rows need whole GPUs",
            "while no process uses it: `sudo nvidia-smi -i 1 -mig 0`",
        ),
        ("fault", f"GPU 2 (0000:52:00): {pending}", reset.format(2)),
        ("fault", "GPU 3 (0001:9d:00): a broken row of its memory could not be remapped", "replace it"),
        ("fault", f"GPU 3 (0001:9d:00): {pending}", reset.format(3)),
    ]


def test_a_field_that_a_driver_does_not_know_costs_its_own_line(read: Any, answers: dict[str, QueryAnswer]) -> None:
    refused = QueryAnswer(2, 'Field "retired_pages.pending" is not a valid field to query.\n')
    results = read(gpus(HostSpec("h")), {**answers, "gpu health": refused})
    assert [of(results, topic)[0][0] for topic in ("GPUs", "GPU health", "Xid")] == ["ok", "unknown", "ok"]


DENIED = QueryAnswer(1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")
NO_JOURNAL = QueryAnswer(1, "", "No journal files were opened due to insufficient permissions.\n")


def test_each_gpu_and_number_is_reported_once_newest_first_and_programs_own_faults_not_at_all(
    read: Any, data: Any, answers: dict[str, QueryAnswer]
) -> None:
    answers |= {name: QueryAnswer(0, data(f"{name}-xids.txt")) for name in ("dmesg", "journal")}
    assert of(read(gpus(HostSpec("h")), answers), "Xid") == [
        ("warning", "a GPU (0000:52:00): Xid 63, memory row or page retired, last at 2026-11-20T10:27:00"),
        ("warning", "GPU 1 (0000:43:00): Xid 79, fallen off the bus, last at 2026-11-20T10:26:30"),
        ("warning", "a GPU (0001:9d:00): Xid 154, see NVIDIA’s list of Xids, last at 2026-11-19T08:00:00"),
    ]


KERNEL_LOGS = [
    (QueryAnswer(0, "nothing of note\n"), NO_JOURNAL, "ok"),
    (DENIED, QueryAnswer(1), "ok"),  # the journal was read, and nothing matched
    (DENIED, QueryAnswer(0), "ok"),
    (DENIED, NO_JOURNAL, "unknown"),
    (DENIED, QueryAnswer(None, "", "journalctl: No such file or directory"), "unknown"),
]


@pytest.mark.parametrize(("ring", "journal", "status"), KERNEL_LOGS)
def test_one_readable_log_is_enough(
    read: Any, answers: dict[str, QueryAnswer], ring: QueryAnswer, journal: QueryAnswer, status: str
) -> None:
    results = read(gpus(HostSpec("h")), {**answers, "dmesg": ring, "journal": journal})
    [result] = [result for result in results if result.topic == "Xid"]
    assert result.status == status


def test_memory_and_locks_are_reported_by_gpu_with_their_processes(read: Any, answers: dict[str, QueryAnswer]) -> None:
    """902 holds inode 102 of another disk; 901 only waits; 903 is gone, or in another process namespace."""
    results = read(gpus(HostSpec("h")), answers)
    assert of(results, "GPU use") == [
        ("warning", "GPU 2: 70 GiB in use by pid 4711 (/usr/bin/python3, with a comma), without a lock"),
        ("ok", "GPU 3: no memory in use, its lock held by a process that is not visible here"),
        (
            "ok",
            "GPU 4: 59 GiB in use by pid 815 (ray::MegatronTrainRayActor), its lock held by pid 900 (python3) of root",
        ),
        ("ok", "GPU 5: no memory in use, its lock held by pid 900 (python3) of root"),
        ("warning", "GPU 6: 32 GiB of its memory held by a process that nvidia-smi does not show, without a lock"),
    ]


def test_a_lock_on_this_machine_is_found_with_its_holder(
    tmp_path: Path, read: Any, answers: dict[str, QueryAnswer]
) -> None:
    """The script, the kernel's own table and ps together."""
    with open(tmp_path / "lock_3.x", "w") as held, open(tmp_path / "lock_11.x", "w"):
        fcntl.flock(held, fcntl.LOCK_EX)
        queries = {**next(gpus(HostSpec("h"))), LOCKS_QUERY_NAME: [*LOCKS_QUERY[:-1], f"{tmp_path}/lock_{{gpu_id}}.x"]}
        asked = {name: queries[name] for name in (LOCKS_QUERY_NAME, "processes")}
        answers |= {**LocalQueryRunner().run_queries(asked, 60), "gpu processes": QueryAnswer(0, "")}
    assert sorted(file["gpu"] for file in json.loads(answers[LOCKS_QUERY_NAME].out)["files"]) == [3, 11]
    [text] = [text for _, text in of(read(gpus(HostSpec("h")), answers), "GPU use") if "GPU 3" in text]
    assert text.startswith(f"GPU 3: no memory in use, its lock held by pid {os.getpid()} (")
