"""Python, git, bash, the clock and disks."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import QueryAnswer as Answer
from ci_tasks.config import HostSpec
from ci_tasks.features.doctor import basics
from ci_tasks.features.doctor.basics import hub, slurm
from ci_tasks.features.doctor.check_results import FAULT, OK, UNKNOWN, WARNING, Check
from ci_tasks.features.doctor.command import examine_host
from tests.parts.cases import named
from tests.parts.processes import LocalQueryRunner

GOOD = {"Python": Answer(0, "3.8.18\n"), "git": Answer(0, "git version 2.17.0\n"), "bash": Answer(0, "x 5.2.15(1)\n")}


PROGRAMS = [
    ("Python", Answer(0, "3.12.1\n"), OK),
    ("Python", Answer(0, "3.7.17\n"), FAULT),
    # A Python that was built without what the runner needs, and pyenv's shim for a version that is not there.
    ("Python", Answer(1, "3.11.2\n", "ModuleNotFoundError: No module named 'zlib'\n"), FAULT),
    ("Python", Answer(127, "", "pyenv: python3: command not found\n"), FAULT),
    ("Python", Answer(None, "", "python3: No such file or directory"), FAULT),
    ("git", Answer(0, "git version 2.16.6\n"), FAULT),
    ("git", Answer(None, "", "git: No such file or directory"), FAULT),
    ("bash", Answer(0, "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\nmore\n"), OK),
]


@pytest.mark.parametrize(("program", "answer", "status"), PROGRAMS)
def test_programs_are_there_and_new_enough(read: Any, program: str, answer: Answer, status: str) -> None:
    results = {result.topic: result for result in read(basics.programs(), {**GOOD, program: answer})}
    assert {topic: result.status for topic, result in results.items()} == {**dict.fromkeys(GOOD, OK), program: status}


CLOCKS = [
    # Asked at 1000, answered at 1010: between the two nobody can tell.
    (1000.0, OK, "within 10.0 s"),
    (997.0, WARNING, "3 s behind"),
    (1010.0 + 7200, WARNING, "7200 s ahead"),
    (None, UNKNOWN, "no answer from python3"),
]


@pytest.mark.parametrize(("there", "status", "text"), CLOCKS)
def test_clocks_are_compared_as_far_as_the_answer_allows(there: float | None, status: str, text: str) -> None:
    answer = Answer(0, f"{there!r}\n") if there else Answer(None, "", "no answer from python3 within 20 s")
    result = basics.read_clock(answer, 1000.0, 1010.0)
    assert (result.status, text in result.text) == (status, True)


GB = 10**9
HOST = HostSpec("h100a", kind="ssh", address="h", gpus=0, mounts={"/mnt/ci": "/data/ci"})


def disk(**more: Any) -> dict[str, Any]:
    roomy = {"free": 500 * GB, "total": 900 * GB}
    return {"path": "/p", "exists": True, "directory": True, "writable": True, **roomy, **more}


def seen(**more: Any) -> Answer:
    return Answer(0, json.dumps(disk(**more)))


NO_ANSWER = Answer(None, "", "no answer from python3 within 20 s")


PLACES = [
    (seen(), seen(), ["ok", "ok"], ""),
    (seen(writable=False), seen(), ["fault", "ok"], "cannot be written"),
    (seen(exists=False), seen(), ["ok", "ok"], ""),  # made by the first run
    (seen(noexec=True), seen(noexec=True), ["fault", "ok"], "mounted noexec"),
    (seen(), seen(exists=False), ["ok", "fault"], "rows that mount /mnt/ci are blocked"),
    (seen(), seen(writable=False), ["ok", "ok"], ""),  # containers write as root
    (NO_ANSWER, seen(), ["unknown", "ok"], "no answer"),
]


@pytest.mark.parametrize(("workspace", "mount", "statuses", "text"), PLACES)
def test_places_of_a_host(read: Any, workspace: Answer, mount: Answer, statuses: list[str], text: str) -> None:
    results = read(basics.disks(HOST, "~/.ci-tasks"), {"workspace": workspace, "/data/ci": mount})
    assert [result.status for result in results] == statuses
    assert any(text in result.text for result in results)


def query_directory(path: str) -> tuple[Check, dict[str, Answer]]:
    check = basics.disks(HostSpec("here", gpus=0), path)
    queries = next(basics.disks(HostSpec("here", gpus=0), path))
    return check, dict(LocalQueryRunner().run_queries(queries, 60))


def test_the_script_measures_a_place_where_it_will_be_in_the_hosts_own_home(read: Any, tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    record = json.loads(query_directory(str(tmp_path / "new/in 'a'\nnew/place"))[1]["workspace"].out)
    size = there.f_blocks * there.f_frsize
    assert (record["exists"], record["writable"], record["total"]) == (False, True, size)
    home = json.loads(query_directory("~/x")[1]["workspace"].out)
    assert home["path"] == os.path.expanduser("~/x")
    (tmp_path / "file").write_text("")
    results = read(*query_directory(str(tmp_path / "file/below")))
    assert [result.status for result in results] == ["fault"], "a file is in the way"


SHARED_MEMORY = [
    (Answer(0, "0, GPU-1, H, 5, 1, 1"), seen(free=10**6), [("/dev/shm", "fault")]),
    (Answer(0, "0, GPU-1, H, 5, 1, 1"), seen(), [("/dev/shm", "ok")]),
    (Answer(None, "", "nvidia-smi: not there"), seen(free=10**6), []),
]


@pytest.mark.parametrize(("gpus", "shm", "expected"), SHARED_MEMORY)
def test_dev_shm_counts_on_a_host_with_gpus(read: Any, gpus: Answer, shm: Answer, expected: list[Any]) -> None:
    results = read(basics.disks(HostSpec("h"), "~"), {"workspace": seen(), "gpus": gpus, "/dev/shm": shm})
    assert [(result.topic, result.status) for result in results[1:]] == expected


ABSENT = Answer(None, "", "sinfo: No such file or directory")
GRES = "gpu:h100:8(S:0-1)\n(null)\n"
HERE = {
    "sinfo version": Answer(0, "slurm-wlm 22.05.8\n"), "partitions": Answer(0, "h100|2-00:00:00\ncpu*|1:00\n"),
    "sacct": Answer(0),
}  # fmt: skip
SOME = {"partition": "h100", "gres": "gpu:h100"}
# hosts.yaml's keys, the nodes' resources, status, a part of the text
PARTITIONS: dict[str, tuple[dict[str, str], str, str, str]] = {
    "nodes with GPUs": (SOME, GRES, "ok", "partition h100: up to 8 gpu:h100 a node"),
    "any partition": ({}, GRES, "ok", "the cluster: up to 8 gpu"),
    "a partition that is not there": ({"partition": "a100"}, "", "fault", "no partition a100"),
    "another kind of GPU": ({**SOME, "gres": "gpu:b200"}, GRES, "fault", "has no gpu:b200"),
    "a partition without GPUs": ({"partition": "cpu"}, "(null)", "fault", "partition cpu has no gpu"),
}


def host(**keys: Any) -> HostSpec:
    return HostSpec("c", kind="slurm", address="login", **keys)


@named(("keys", "gres", "status", "text"), PARTITIONS)
def test_a_partition(read: Any, keys: dict[str, Any], gres: str, status: str, text: str) -> None:
    answers = {**HERE, "gpus": Answer(0, gres)}
    [result] = [result for result in read(slurm(host(**keys)), answers) if result.topic == "GPUs"]
    assert (result.status, text in result.text, bool(result.next_step)) == (status, True, status != "ok"), result


def test_a_login_node_without_slurm_is_one_fault_and_a_cluster_that_keeps_no_ended_jobs_a_warning(read: Any) -> None:
    absent = read(slurm(host()), dict.fromkeys(HERE, ABSENT))
    assert [(result.topic, result.status) for result in absent] == [("Slurm", FAULT)]
    disabled = Answer(1, "", "Slurm accounting storage is disabled")
    answers = {**HERE, "gpus": Answer(0, GRES), "sacct": disabled}
    results = [result for result in read(slurm(host()), answers) if result.status == "warning"]
    text = f"sacct: {disabled.err}: only squeue tells how a job ended"
    assert [(result.topic, result.text) for result in results] == [("accounting", text)]


def test_a_login_node_is_not_queried_for_gpus_and_containers() -> None:
    asked: list[str] = []

    class Recorder:
        def run_queries(self, queries: Any, timeout: float) -> dict[str, Answer]:
            asked.extend(word for argv in queries.values() for word in argv)
            return dict.fromkeys(queries, ABSENT)

    examine_host(host(runtime="docker"), ["image"], lambda _: nullcontext(Recorder()))
    assert "sinfo" in asked and not {*asked} & {"docker", "nvidia-smi", "dmesg"}


CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


HUB_ANSWERS = [
    ("", "ok", ""),
    ("HTTP Error 401: Unauthorized", "warning", "add HF_TOKEN"),
    ("HTTP Error 429: Too Many Requests", "warning", "wait some minutes"),
    ("HTTP Error 503: Service Unavailable", "warning", "wait some minutes"),
    (f"<urlopen error {CERTIFICATE}>", "fault", "certificate"),
    ("<urlopen error [Errno -2] Name or service not known>", "fault", "DNS"),
    (None, "unknown", ""),
]


@pytest.mark.parametrize(("error", "status", "step"), HUB_ANSWERS)
def test_each_answer_has_a_message(read: Any, error: str | None, status: str, step: str) -> None:
    answer = Answer(0, "" if error is None else json.dumps({"name": "e", "error": error}))
    [result] = read(hub(HostSpec("h")), {"hub": answer})
    assert (result.status, step in result.next_step, "<" in result.text) == (status, True, False), result


def test_the_script_asks_the_hub_and_shows_no_secret(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    env = {"HF_ENDPOINT": "http://me:verysecret@127.0.0.1:9", "no_proxy": "127.0.0.1"}
    host = HostSpec("h", env=env, secrets=("HF_TOKEN",))
    queries = next(hub(host))
    [result] = read(hub(host), LocalQueryRunner(env).run_queries(queries, 60))
    assert (result.status, result.text) == ("fault", "http://127.0.0.1:9: [Errno 111] Connection refused")
    assert "verysecret" not in str([*queries["hub"], result])
