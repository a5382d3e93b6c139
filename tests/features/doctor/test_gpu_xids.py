"""GPU faults in the kernel's log, from dmesg and from the journal."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor import gpu_xids

DENIED = QueryAnswer(1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")
NO_JOURNAL = QueryAnswer(1, "", "No journal files were opened due to insufficient permissions.\n")


@pytest.fixture
def gpu(data: Any) -> dict[str, QueryAnswer]:
    return {
        "gpus": QueryAnswer(0, data("smi-gpus-h100x8.txt")),
        "gpu health": QueryAnswer(0, data("smi-health-h100.txt")),
    }


def test_each_gpu_and_number_is_reported_once_newest_first_and_programs_own_faults_not_at_all(
    read: Any, data: Any, gpu: dict[str, QueryAnswer]
) -> None:
    answers = {"dmesg": QueryAnswer(0, data("dmesg-xids.txt")), "journal": QueryAnswer(0, data("journal-xids.txt"))}
    results = read(gpu_xids.facts(), {**gpu, **answers})
    assert [f.text for f in results] == [
        "the GPU at 0000:52:00: Xid 63, row or page of its memory taken out, last at 2026-11-20T10:27:00",
        "GPU 1 (0000:43:00): Xid 79, fallen off the bus, last at 2026-11-20T10:26:30",
        "the GPU at 0001:9d:00: Xid 154, see NVIDIA’s list of Xids, last at 2026-11-19T08:00:00",
    ]
    assert {f.status for f in results} == {"warning"}


@pytest.mark.parametrize(
    ("ring", "journal", "status"),
    [
        (QueryAnswer(0, "nothing of note\n"), NO_JOURNAL, "ok"),
        (DENIED, QueryAnswer(1), "ok"),  # the journal was read, and nothing matched
        (DENIED, QueryAnswer(0), "ok"),
        (DENIED, NO_JOURNAL, "unknown"),
        (DENIED, QueryAnswer(None, "", "journalctl: No such file or directory"), "unknown"),
    ],
)
def test_one_readable_log_is_enough(
    read: Any, gpu: dict[str, QueryAnswer], ring: QueryAnswer, journal: QueryAnswer, status: str
) -> None:
    [result] = read(gpu_xids.facts(), {**gpu, "dmesg": ring, "journal": journal})
    assert result.status == status
    assert bool(result.next_step) == (status == "unknown")
