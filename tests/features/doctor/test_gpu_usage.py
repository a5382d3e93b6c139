"""Who has memory on the GPUs, and who holds their locks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.features.doctor import gpu_usage
from ci_tasks.hosts.queries import LOCKS_QUERY, LOCKS_QUERY_NAME, LocalQueryRunner

STICKY = 0o41777
Say = Callable[..., dict[str, QueryAnswer]]


def lock_file(gpu: int, inode: int, **more: Any) -> dict[str, Any]:
    path = f"/dev/shm/custom_gpu_lock_{gpu}.lock"
    return {"gpu": gpu, "path": path, "device": [0, 0x1B], "inode": inode, "owner": 0, "problem": "", **more}


@pytest.fixture
def say(data: Callable[[str], str]) -> Say:
    """Answers of a host with eight GPUs: 2 and 4 in use, 6 held by something unseen; 4 and 5 locked by one process."""

    def answers(*, files: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, QueryAnswer]:
        looked = {
            "files": [lock_file(gpu, 100 + gpu) for gpu in range(8)] if files is None else files,
            "locks": data("proc-locks.txt"),
            "protected": "2",
            "user": 1000,
            "directory": [STICKY, 0],
        }
        return {
            "gpus": QueryAnswer(0, data("smi-gpus-h100x8.txt")),
            "gpu processes": QueryAnswer(0, data("smi-apps.txt")),
            "gpu locks": QueryAnswer(0, json.dumps({**looked, **more})),
            "processes": QueryAnswer(0, data("ps.txt")),
        }

    return answers


def test_memory_is_reported_with_its_user_and_whether_a_lock_covers_it(read: Any, say: Say) -> None:
    results = [f for f in read(gpu_usage.facts(say()), say()) if f.topic == gpu_usage.MEMORY]
    assert [(f.status, f.text) for f in results] == [
        (
            "warning",
            "GPU 2: 70 GiB in use by pid 4711 (/usr/bin/python3, with a comma) of a-user-of-the-box, without a lock",
        ),
        ("ok", "GPU 4: 59 GiB in use by pid 815 (ray::MegatronTrainRayActor) of root, with its lock held"),
        ("warning", "GPU 6: 32 GiB of its memory held by a process that nvidia-smi does not show, without a lock"),
    ]
    assert "ask a-user-of-the-box" in results[0].next_step


def test_locks_are_reported_by_holder_and_not_for_files_of_other_disks(read: Any, say: Say) -> None:
    """902 holds inode 102 of another disk; 901 only waits; 903 is gone, or in another process namespace."""
    results = [f for f in read(gpu_usage.facts(say()), say()) if f.topic == gpu_usage.LOCKS]
    assert [(f.status, f.text) for f in results] == [
        ("ok", "GPU 3: held by pid 903, which is not visible here"),
        ("ok", "GPUs 4-5: held by pid 900 (python3) of root, for 2 h"),
    ]


@pytest.mark.parametrize(
    ("changes", "status", "step"),
    [
        ({"files": [lock_file(g, 7, problem="Permission denied" if g == 1 else "") for g in range(8)]}, "fault",
         "chmod a+r"),
        # Under fs.protected_regular root cannot open (with O_CREAT, as CI's script does) what a user has made.
        ({"files": [lock_file(g, 7, owner=1000) for g in range(8)]}, "warning", "sudo chown root"),
        ({"files": [lock_file(g, 7, owner=1000) for g in range(8)], "protected": "0"}, "ok", ""),
        ({"files": []}, "fault", "for i in 0 1 2 3 4 5 6 7; do sudo install -m 666"),
        ({"files": [lock_file(g, 7) for g in range(7)]}, "fault", "for i in 7; do sudo install -m 666"),
        ({"files": [], "protected": "0"}, "ok", ""),
    ],
)  # fmt: skip
def test_lock_files_that_somebody_could_not_open(
    read: Any, say: Say, changes: dict[str, Any], status: str, step: str
) -> None:
    [result] = [f for f in read(gpu_usage.facts(say()), say(locks="", **changes)) if f.topic == gpu_usage.LOCKS]
    assert (result.status, step in result.next_step) == (status, True), result


def test_a_lock_on_this_machine_is_found_with_its_holder(tmp_path: Path, say: Say, monkeypatch: Any) -> None:
    """The script, the kernel's own table and ps together."""
    with open(tmp_path / "lock_3.x", "w") as held, open(tmp_path / "lock_11.x", "w"):
        fcntl.flock(held, fcntl.LOCK_EX)
        script = [*LOCKS_QUERY[:-1], str(tmp_path / "lock_{gpu_id}.x")]
        looked = LocalQueryRunner().run_queries({LOCKS_QUERY_NAME: script}, 60)
        answers = {**say(), **looked, "gpu processes": QueryAnswer(0, "")}
        [fact] = gpu_usage.facts(answers)
        processes = LocalQueryRunner().run_queries({"processes": fact.queries["processes"]}, 60)
    files = json.loads(looked[LOCKS_QUERY_NAME].out)["files"]
    assert sorted(file["gpu"] for file in files) == [3, 11]
    text = next(f.text for f in fact.parse({**answers, **processes}) if f.topic == gpu_usage.LOCKS)
    assert text.startswith(f"GPU 3: held by pid {os.getpid()} (")
