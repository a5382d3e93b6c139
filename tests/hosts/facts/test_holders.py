"""Who has memory on the GPUs, and who holds their locks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.hosts.ask import Answer, LocalAsker
from ci_tasks.hosts.facts import holders
from ci_tasks.hosts.facts.holders import Process

STICKY = 0o41777
Say = Callable[..., dict[str, Answer]]


def lock_file(gpu: int, inode: int, **more: Any) -> dict[str, Any]:
    path = f"/dev/shm/custom_gpu_lock_{gpu}.lock"
    return {"gpu": gpu, "path": path, "device": [0, 0x1B], "inode": inode, "owner": 0, "problem": "", **more}


@pytest.fixture
def say(data: Callable[[str], str]) -> Say:
    """Answers of a host with eight GPUs: 2 and 4 in use, 6 held by something unseen; 4 and 5 locked by one process."""

    def answers(*, files: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Answer]:
        looked = {
            "files": [lock_file(gpu, 100 + gpu) for gpu in range(8)] if files is None else files,
            "locks": data("proc-locks.txt"),
            "protected": "2",
            "user": 1000,
            "directory": [STICKY, 0],
        }
        return {
            "gpus": Answer(0, data("smi-gpus-h100x8.txt")),
            "gpu processes": Answer(0, data("smi-apps.txt")),
            "gpu locks": Answer(0, json.dumps({**looked, **more})),
            "processes": Answer(0, data("ps.txt")),
        }

    return answers


def test_memory_is_told_with_its_user_and_whether_a_lock_covers_it(read: Any, say: Say) -> None:
    found = [f for f in read(holders.facts(say()), say()) if f.topic == holders.MEMORY]
    assert [(f.status, f.text) for f in found] == [
        (
            "warning",
            "GPU 2: 70 GiB in use by pid 4711 (/usr/bin/python3, with a comma) of a-user-of-the-box, without a lock",
        ),
        ("ok", "GPU 4: 59 GiB in use by pid 815 (ray::MegatronTrainRayActor) of root, with its lock held"),
        ("warning", "GPU 6: 32 GiB of its memory held by a process that nvidia-smi does not show, without a lock"),
    ]
    assert "ask a-user-of-the-box" in found[0].next_step


def test_locks_are_told_by_holder_and_not_for_files_of_other_disks(read: Any, say: Say) -> None:
    """902 holds inode 102 of another disk; 901 only waits; 903 is gone, or in another process namespace."""
    found = [f for f in read(holders.facts(say()), say()) if f.topic == holders.LOCKS]
    assert [(f.status, f.text) for f in found] == [
        ("ok", "GPU 3: held by pid 903, which is not to be seen from here"),
        ("ok", "GPUs 4, 5: held by pid 900 (python3) of root, for 2 h"),
    ]


def test_processes_are_asked_for_by_number_and_without_their_arguments(say: Say) -> None:
    [fact] = holders.facts(say())
    assert fact.questions["processes"] == ["ps", "-o", "pid=,user:32=,etimes=,comm=", "-p", "815,900,903,4711"]


def test_where_nobody_is_on_the_gpus_nobody_is_asked_for(read: Any, data: Any, say: Say) -> None:
    idle = data("smi-gpus-h100x8.txt").replace("71344", "4").replace("60012", "4").replace("33000", "4")
    answers = {**say(locks=""), "gpus": Answer(0, idle), "gpu processes": Answer(0, "")}
    facts = holders.facts(answers)
    assert "processes" not in facts[0].questions
    assert [f.text for f in read(facts, answers)] == ["nobody uses a GPU", "none is held"]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        (
            {"files": [lock_file(g, 7, problem="Permission denied" if g == 1 else "") for g in range(8)]},
            "fault",
            "chmod a+r",
        ),
        # Under fs.protected_regular root cannot open (with O_CREAT, as CI's script does) what a user has made.
        ({"files": [lock_file(g, 7, owner=1000) for g in range(8)]}, "warning", "sudo chown root"),
        ({"files": [lock_file(g, 7, owner=1000) for g in range(8)], "protected": "0"}, "ok", ""),
        ({"files": [lock_file(g, 7, owner=1000) for g in range(8)], "directory": [0o40777, 0]}, "ok", ""),
        ({"files": []}, "fault", "for i in 0 1 2 3 4 5 6 7; do sudo install -m 666"),
        ({"files": [lock_file(g, 7) for g in range(7)]}, "fault", "for i in 7; do sudo install -m 666"),
        ({"files": [], "user": 0}, "ok", ""),
        ({"files": [], "protected": "0"}, "ok", ""),
    ],
)
def test_lock_files_that_somebody_could_not_open(
    read: Any, say: Say, changes: dict[str, Any], status: str, words: str
) -> None:
    [found] = [f for f in read(holders.facts(say()), say(locks="", **changes)) if f.topic == holders.LOCKS]
    assert (found.status, words in found.next_step) == (status, True), found


def test_lock_files_are_wanted_for_all_gpus_that_cis_script_believes_in(read: Any, data: Any, say: Say) -> None:
    one = Answer(0, data("smi-gpus-h100x8.txt").splitlines()[0])
    [found] = [
        f for f in read(holders.facts(say()), {**say(files=[], locks=""), "gpus": one}) if f.topic == holders.LOCKS
    ]
    assert "for i in 0 1 2 3 4 5 6 7;" in found.next_step


def test_processes_are_parsed(data: Any) -> None:
    assert holders.parse_processes(data("ps.txt") + "  7 me 3 tmux: server\nerror: no\n") == {
        900: Process("root", 7260, "python3"),
        4711: Process("a-user-of-the-box", 93600, "python3"),
        815: Process("root", 120, "ray::MegatronTr"),
        7: Process("me", 3, "tmux: server"),
    }


def test_a_lock_on_this_machine_is_found_with_its_holder(tmp_path: Path, say: Say, monkeypatch: Any) -> None:
    """The script, the kernel's own table and ps together."""
    with open(tmp_path / "lock_3.x", "w") as held, open(tmp_path / "lock_11.x", "w"):
        fcntl.flock(held, fcntl.LOCK_EX)
        script = [*holders.FIRST[holders.LOCKS_QUESTION][:-1], str(tmp_path / "lock_{gpu_id}.x")]
        looked = LocalAsker().ask({holders.LOCKS_QUESTION: script}, 60)
        answers = {**say(), **looked, "gpu processes": Answer(0, "")}
        [fact] = holders.facts(answers)
        asked = LocalAsker().ask({"processes": fact.questions["processes"]}, 60)
    files = json.loads(looked[holders.LOCKS_QUESTION].out)["files"]
    assert sorted(file["gpu"] for file in files) == [3, 11]
    text = next(f.text for f in fact.read({**answers, **asked}) if f.topic == holders.LOCKS)
    assert text.startswith(f"GPU 3: held by pid {os.getpid()} (")
