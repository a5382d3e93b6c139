"""Room on disks, from numbers and from this machine's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.hosts.ask import Answer, LocalAsker
from ci_tasks.hosts.facts import disks
from ci_tasks.hosts.facts.disks import Need
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import Finding

GB = 10**9
HOST = HostSpec("h100a", kind="ssh", address="h", mounts={"/mnt/ci": "/data/ci"})


def disk(**more: Any) -> dict[str, Any]:
    roomy = {"free": 500 * GB, "total": 900 * GB, "files": 10**7, "files_free": 10**6}
    return {"path": "/p", "exists": True, "directory": True, "writable": True, **roomy, **more}


def told(**more: Any) -> Answer:
    return Answer(0, json.dumps(disk(**more)))


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({}, "ok"),
        ({"free": 10 * GB}, "ok"),
        ({"free": 10 * GB - 1}, "warning"),
        ({"free": 1 * GB - 1}, "fault"),
        ({"files_free": 99_999}, "warning"),
        ({"files_free": 999}, "fault"),
        # btrfs makes inodes as it goes and counts none.
        ({"files": 0, "files_free": 0}, "ok"),
    ],
)
def test_bytes_and_files_both_count(numbers: dict[str, int], status: str) -> None:
    found = disks.room("disk", "here", disk(**numbers), Need(1 * GB, 10 * GB, "why"), "step")
    assert (found.status, found.next_step) == (status, "" if status == "ok" else "step")
    assert found.text.startswith("here: ")


@pytest.mark.parametrize(
    ("workspace", "mount", "statuses", "words"),
    [
        (told(), told(), ["ok", "ok"], ""),
        (told(writable=False), told(), ["fault", "ok"], "cannot be written"),
        (told(directory=False), told(), ["fault", "ok"], "cannot be written"),
        (told(exists=False), told(), ["ok", "ok"], ""),  # made by the first run
        (told(), told(exists=False), ["ok", "fault"], "rows that mount /mnt/ci are blocked"),
        (told(), told(writable=False), ["ok", "ok"], ""),  # containers write as root
        (Answer(None, "", "no answer from python3 within 20 s"), told(), ["unknown", "ok"], "no answer"),
    ],
)
def test_places_of_a_host(read: Any, workspace: Answer, mount: Answer, statuses: list[str], words: str) -> None:
    found = read(disks.facts(HOST, "~/.ci-tasks"), {"workspace": workspace, "mount /data/ci": mount})
    assert [f.status for f in found] == statuses
    assert any(words in f.text for f in found)


def test_a_store_that_cannot_be_seen_is_no_fault(read: Any) -> None:
    [found] = read([disks.store("docker", "/var/lib/docker", disks.PULL)], {"store": told(exists=False)})
    assert found.status == "unknown"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (told(free=32 * GB), "ok"),
        (told(free=67_000_000, total=67_108_864), "fault"),
        (told(free=4 * GB), "warning"),
        (told(exists=False), "fault"),
        (Answer(None, "", "python3: No such file or directory"), "unknown"),
    ],
)
def test_shared_memory(read: Any, answer: Answer, status: str) -> None:
    [found] = read([disks.shm()], {"shm": answer})
    assert (found.topic, found.status) == ("/dev/shm", status)


def asked(path: str) -> dict[str, Any]:
    [fact] = disks.facts(HostSpec("here"), path)
    answer = LocalAsker().ask(fact.questions, 60)["workspace"]
    assert answer.code == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_a_place_that_is_not_there_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    found = asked(str(tmp_path / "new/in 'a'\nnew/place"))
    there = os.statvfs(tmp_path)
    assert (found["exists"], found["writable"], found["total"]) == (False, True, there.f_blocks * there.f_frsize)


def test_a_home_is_the_hosts_own() -> None:
    assert asked("~/x")["path"] == os.path.expanduser("~/x")


def test_a_file_in_the_way_is_seen(tmp_path: Path, read: Any) -> None:
    (tmp_path / "file").write_text("")
    facts = disks.facts(HostSpec("here"), str(tmp_path / "file/below"))
    [found] = read(facts, LocalAsker().ask(facts[0].questions, 60))
    assert isinstance(found, Finding)
    assert found.status == "fault"
