"""`doctor` on this machine, with programs of the test's own in front of the real ones."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from ci_tasks import config
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.features.doctor.examine import run_doctor
from ci_tasks.hosts.queries import LocalQueryRunner, QueryRunner

DATA = Path(__file__).with_name("data")
QUIET = "env: {HF_HUB_OFFLINE: '1'}"
Program = Callable[[str, Mapping[str, str]], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program before all others on PATH; it prints the file of `data`, or does the shell text after `!`,
    that belongs to the first words it knows among its own, and refuses any other question."""
    bin = tmp_path / "bin"
    bin.mkdir()
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path / "home"))

    def make(name: str, answers: Mapping[str, str]) -> None:
        cases = [
            f"*{shlex.quote(argv)}*) {then[1:] if then.startswith('!') else f'cat {DATA / then}'};;"
            for argv, then in answers.items()
        ]
        body = "\n".join(["#!/bin/sh", 'case "$*" in', *cases, '*) echo "surprise: $*" >&2; exit 99;;', "esac"])
        (bin / name).write_text(body + "\n")
        (bin / name).chmod(0o755)

    return make


SMI = {
    "--query-gpu=index,uuid": "smi-gpus-h100x8.txt",
    "--query-gpu=index,pci": "smi-health-h100.txt",
    "--query-remapped": "!:",
    "--query-compute": "smi-apps.txt",
}
DOCKER = {"info": "docker-info.json", "image inspect": "docker-image.json"}


def local(_: HostSpec) -> AbstractContextManager[QueryRunner]:
    return nullcontext(LocalQueryRunner())


def examined(capsys: pytest.CaptureFixture[str], text: str, name: str | None = None, **more: Any) -> tuple[int, Any]:
    code = run_doctor(config.read(text), name, as_json=True, **{"images": (), "open_query_runner": local, **more})
    return code, json.loads(capsys.readouterr().out)


def by_topic(results: list[dict[str, Any]]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = {}
    for each in results:
        topics.setdefault(each["topic"], []).append(each["status"])
    return topics


def test_a_gpu_host_is_examined_and_its_raw_answers_are_kept(program: Program, capsys: Any) -> None:
    program("nvidia-smi", SMI)
    program("docker", DOCKER)
    program("dmesg", {"--kernel": "dmesg-xids.txt"})
    code, results = examined(capsys, f"hosts: {{box: {{gpus: 8, {QUIET}}}}}", images=["slimerl/slime:latest"])
    topics = by_topic(results)
    assert topics["docker"] == topics["NVIDIA runtime"] == topics["image"] == topics["GPUs"] == ["ok"]
    assert topics["GPU memory"] == ["warning"] * 3
    assert topics["Xid"] == ["warning"] * 2
    assert topics["clock"] == ["ok"]
    smi = next(each for each in results if each["topic"] == "GPUs")["answers"]["gpus"]
    assert smi["command"][0] == "nvidia-smi"
    assert smi["out"] == (DATA / "smi-gpus-h100x8.txt").read_text()
    assert code == (125 if any(each["status"] == "fault" for each in results) else 0)


def test_each_broken_part_costs_only_its_own_lines(
    program: Program, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci_tasks.features.doctor.examine.QUERY_TIMEOUT", 2.0)
    program("nvidia-smi", {"--query": "!sleep 600"})
    program("docker", {"info": "!sleep 600", "image": "!sleep 600"})
    program("git", {"--version": "!echo git version 1.8.3"})
    code, results = examined(capsys, f"hosts: {{box: {{{QUIET}}}}}", images=["x"])
    topics = by_topic(results)
    assert topics["GPUs"] == topics["docker"] == topics["git"] == ["fault"]
    assert topics["Python"] == topics["bash"] == topics["hub"] == ["ok"]
    assert code == 125


class Dying:
    """A host whose link dies after the first round."""

    def __init__(self) -> None:
        self.queries = 0

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        self.queries += 1
        if self.queries == 3:
            raise Blocked("the link to box died", hint="try again")
        return LocalQueryRunner().run_queries(queries, timeout)


def test_every_host_is_examined_though_some_cannot_be_reached(program: Program, capsys: Any) -> None:
    program("nvidia-smi", SMI)
    closed: list[str] = []

    @contextmanager
    def open_query_runner(host: HostSpec) -> Iterator[QueryRunner]:
        if host.name == "gone":
            raise Blocked("gone does not answer", hint="ping it")
        try:
            yield Dying() if host.name == "dies" else LocalQueryRunner()
        finally:
            closed.append(host.name)

    kind = f"kind: ssh, address: a, runtime: none, workspace: /tmp, {QUIET}"
    text = f"hosts: {{gone: {{{kind}}}, dies: {{{kind}}}, box: {{{kind}, gpus: 0}}}}"
    code, results = examined(capsys, text, open_query_runner=open_query_runner)
    of = {name: [each for each in results if each["host"] == name] for name in ("gone", "dies", "box")}
    assert [(f["topic"], f["status"], f["text"], f["next_step"]) for f in of["gone"]] == [
        ("SSH", "fault", "gone does not answer", "ping it")
    ]
    assert by_topic(of["dies"])["SSH"] == ["ok", "fault"]
    assert by_topic(of["dies"])["Python"] == ["ok"]
    assert by_topic(of["box"])["SSH"] == ["ok"]
    assert (code, closed) == (125, ["dies", "box"])
