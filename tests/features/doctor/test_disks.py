"""Room on disks, from numbers and from this machine's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import disks
from ci_tasks.features.doctor.check_results import CheckResult
from ci_tasks.features.doctor.disks import SpaceLimits
from ci_tasks.features.doctor.host_fact import HostFact
from ci_tasks.hosts.queries import LocalQueryRunner
from tests import fixtures as support

GB = 10**9
HOST = HostSpec("h100a", kind="ssh", address="h", mounts={"/mnt/ci": "/data/ci"})


def disk(**more: Any) -> dict[str, Any]:
    roomy = {"free": 500 * GB, "total": 900 * GB, "files": 10**7, "files_free": 10**6}
    return {"path": "/p", "exists": True, "directory": True, "writable": True, **roomy, **more}


def directory_answer(**more: Any) -> QueryAnswer:
    return QueryAnswer(0, json.dumps(disk(**more)))


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
    result = disks.free_space("disk", "here", disk(**numbers), SpaceLimits(1 * GB, 10 * GB, "why"), "step")
    assert (result.status, result.next_step) == (status, "" if status == "ok" else "step")
    assert result.text.startswith("here: ")


@pytest.mark.parametrize(
    ("workspace", "mount", "statuses", "text"),
    [
        (directory_answer(), directory_answer(), ["ok", "ok"], ""),
        (directory_answer(writable=False), directory_answer(), ["fault", "ok"], "cannot be written"),
        (directory_answer(directory=False), directory_answer(), ["fault", "ok"], "cannot be written"),
        (directory_answer(exists=False), directory_answer(), ["ok", "ok"], ""),  # made by the first run
        (directory_answer(noexec=True), directory_answer(noexec=True), ["fault", "ok"], "mounted noexec"),
        (directory_answer(), directory_answer(exists=False), ["ok", "fault"], "rows that mount /mnt/ci are blocked"),
        (directory_answer(), directory_answer(writable=False), ["ok", "ok"], ""),  # containers write as root
        (
            QueryAnswer(None, "", "no answer from python3 within 20 s"),
            directory_answer(),
            ["unknown", "ok"],
            "no answer",
        ),
    ],
)
def test_places_of_a_host(
    read: Any, workspace: QueryAnswer, mount: QueryAnswer, statuses: list[str], text: str
) -> None:
    results = read(disks.facts(HOST, "~/.ci-tasks"), {"workspace": workspace, "mount /data/ci": mount})
    assert [f.status for f in results] == statuses
    assert any(text in f.text for f in results)


def test_an_unreadable_image_store_is_no_fault(read: Any) -> None:
    [result] = read([disks.store("docker", "/var/lib/docker", disks.PULL)], {"store": directory_answer(exists=False)})
    assert result.status == "unknown"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (directory_answer(free=32 * GB), "ok"),
        (directory_answer(free=67_000_000, total=67_108_864), "fault"),
        (directory_answer(free=4 * GB), "warning"),
        (directory_answer(exists=False), "fault"),
        (QueryAnswer(None, "", "python3: No such file or directory"), "unknown"),
    ],
)
def test_shared_memory(read: Any, answer: QueryAnswer, status: str) -> None:
    [result] = read([HostFact({"shm": disks.SHM_QUERY}, disks.parse_shm)], {"shm": answer})
    assert (result.topic, result.status) == ("/dev/shm", status)


def query_directory(path: str) -> dict[str, Any]:
    [fact] = disks.facts(HostSpec("here"), path)
    answer = LocalQueryRunner().run_queries(fact.queries, 60)["workspace"]
    assert answer.code == 0, answer.err
    record: dict[str, Any] = json.loads(answer.out)
    return record


def test_a_place_that_is_not_there_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    record = query_directory(str(tmp_path / "new/in 'a'\nnew/place"))
    there = os.statvfs(tmp_path)
    assert (record["exists"], record["writable"], record["total"]) == (
        False,
        True,
        there.f_blocks * there.f_frsize,
    )


@pytest.mark.parametrize(("options", "noexec"), [("noexec", True), ("exec", False)])
def test_a_place_on_a_file_system_that_forbids_programs_says_so(tmp_path: Path, options: str, noexec: bool) -> None:
    [fact] = disks.facts(HostSpec("here"), str(tmp_path / "not there yet"))
    done = support.on_a_new_tmpfs(tmp_path, options, *fact.queries["workspace"])
    assert json.loads(done.stdout)["noexec"] is noexec


def test_a_home_is_the_hosts_own() -> None:
    assert query_directory("~/x")["path"] == os.path.expanduser("~/x")


def test_a_file_in_the_way_is_detected(tmp_path: Path, read: Any) -> None:
    (tmp_path / "file").write_text("")
    facts = disks.facts(HostSpec("here"), str(tmp_path / "file/below"))
    [result] = read(facts, LocalQueryRunner().run_queries(facts[0].queries, 60))
    assert isinstance(result, CheckResult)
    assert result.status == "fault"
