"""Room on disks, from numbers and from this machine's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import disks
from ci_tasks.features.doctor.host_fact import HostFact
from ci_tasks.hosts.queries import LocalQueryRunner
from tests import fixtures as support

GB = 10**9
HOST = HostSpec("h100a", kind="ssh", address="h", mounts={"/mnt/ci": "/data/ci"})


def disk(**more: Any) -> dict[str, Any]:
    roomy = {"free": 500 * GB, "total": 900 * GB, "files": 10**7, "files_free": 10**6}
    return {"path": "/p", "exists": True, "directory": True, "writable": True, **roomy, **more}


def seen(**more: Any) -> Answer:
    return Answer(0, json.dumps(disk(**more)))


NO_ANSWER = Answer(None, "", "no answer from python3 within 20 s")


@pytest.mark.parametrize(
    ("workspace", "mount", "statuses", "text"),
    [
        (seen(), seen(), ["ok", "ok"], ""),
        (seen(writable=False), seen(), ["fault", "ok"], "cannot be written"),
        (seen(exists=False), seen(), ["ok", "ok"], ""),  # made by the first run
        (seen(noexec=True), seen(noexec=True), ["fault", "ok"], "mounted noexec"),
        (seen(), seen(exists=False), ["ok", "fault"], "rows that mount /mnt/ci are blocked"),
        (seen(), seen(writable=False), ["ok", "ok"], ""),  # containers write as root
        (NO_ANSWER, seen(), ["unknown", "ok"], "no answer"),
    ],
)
def test_places_of_a_host(read: Any, workspace: Answer, mount: Answer, statuses: list[str], text: str) -> None:
    results = read(disks.facts(HOST, "~/.ci-tasks"), {"workspace": workspace, "mount /data/ci": mount})
    assert [result.status for result in results] == statuses
    assert any(text in result.text for result in results)


def query_directory(path: str) -> tuple[HostFact, dict[str, Answer], dict[str, Any]]:
    [fact] = disks.facts(HostSpec("here"), path)
    answers = {**LocalQueryRunner().run_queries(fact.queries, 60)}
    return fact, answers, json.loads(answers["workspace"].out)


def test_the_script_measures_a_place_where_it_will_be_in_the_hosts_own_home(read: Any, tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    *_, record = query_directory(str(tmp_path / "new/in 'a'\nnew/place"))
    size = there.f_blocks * there.f_frsize
    assert (record["exists"], record["writable"], record["total"]) == (False, True, size)
    assert query_directory("~/x")[2]["path"] == os.path.expanduser("~/x")
    (tmp_path / "file").write_text("")
    fact, answers, _ = query_directory(str(tmp_path / "file/below"))
    assert [result.status for result in read([fact], answers)] == ["fault"], "a file is in the way"


@pytest.mark.parametrize(("options", "noexec"), [("noexec", True), ("exec", False)])
def test_a_place_on_a_file_system_that_forbids_programs_says_so(tmp_path: Path, options: str, noexec: bool) -> None:
    [fact] = disks.facts(HostSpec("here"), str(tmp_path / "not there yet"))
    done = support.on_a_new_tmpfs(tmp_path, options, *fact.queries["workspace"])
    assert json.loads(done.stdout)["noexec"] is noexec
