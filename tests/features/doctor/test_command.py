"""`doctor` of several hosts, its table, and odd answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import pytest

from ci_tasks import config
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.errors import Blocked
from ci_tasks.features.doctor.check_results import FAULT, OK, WARNING, CheckResult, lines
from ci_tasks.features.doctor.command import examine_host
from ci_tasks.hosts.mux import KeptConnection
from ci_tasks.hosts.queries import QueryRunner
from tests.parts.processes import LocalQueryRunner


class Dying:
    """A host whose link dies while it is asked."""

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        raise Blocked("the link to box died", hint="try again")


def test_every_host_is_examined_though_some_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptConnection("a", 1, True, 0, 1.0)
    monkeypatch.setattr("ci_tasks.features.doctor.command.kept_connections", lambda: [kept])
    closed: list[str] = []

    @contextmanager
    def open_query_runner(host: HostSpec) -> Iterator[QueryRunner]:
        if host.name == "gone":
            raise Blocked("gone does not answer", hint="ping it")
        try:
            yield Dying() if host.name == "dies" else LocalQueryRunner()
        finally:
            closed.append(host.name)

    kind = "kind: ssh, address: a, runtime: none, workspace: /tmp, env: {HF_HUB_OFFLINE: '1'}"
    hosts = config.read(f"hosts: {{gone: {{{kind}}}, dies: {{{kind}}}, box: {{{kind}, gpus: 0}}}}").hosts
    of = {name: [*examine_host(hosts[name], (), open_query_runner)] for name in ("gone", "dies", "box")}
    assert [(r.topic, r.status, r.text, r.next_step) for r in of["gone"]] == [
        ("SSH", "fault", "gone does not answer", "ping it")
    ]
    assert [r.status for r in of["dies"] if r.topic == "SSH"] == ["fault"]
    assert [(r.topic, r.status) for r in of["box"] if r.topic in ("SSH", "Python")] == [("SSH", "ok"), ("Python", "ok")]
    assert of["box"][0].text == "connected to a; the connection is kept"
    assert closed == ["dies", "box"]


KEY = "box ssh-ed25519 " + "A" * 68


def test_results_stand_with_what_to_do_below_and_a_line_to_copy_stays_whole() -> None:
    results = [
        CheckResult("SSH", FAULT, "the host key is not known\n  shown: SHA256:x", f"add this line:\n{KEY}\x1b"),
        CheckResult("Python", OK, "3.11.2"),
        CheckResult("disk", OK, "workspace /data/ci-tasks: 57.5 GB free of 270.6 GB"),
        CheckResult("disk", FAULT, "mount /x: not there", "make it"),
        CheckResult("hub", WARNING, "429\x1b", "wait\x1b"),
    ]
    assert [line.replace("\ufffd", "") for line in lines("box (ssh)", results, 60)] == [
        "box (ssh)",
        "  fault     SSH     the host key is not known",
        "  shown: SHA256:x",
        "                    → add this line:",
        KEY,
        "  ok        Python  3.11.2",
        "  ok        disk    workspace /data/ci-tasks: 57.5 GB free",
        "                    of 270.6 GB",
        "  fault             mount /x: not there",
        "                    → make it",
        "  warning   hub     429",
        "                    → wait",
    ]
    assert "\x1b" not in "".join(lines("box", results))


HOSTS = [
    HostSpec("d", mounts={"/a": "/b"}),
    HostSpec("p", runtime="podman", gpus=4, pull="never"),
    HostSpec("s", runtime="none", gpus=8, simulate=True),
    HostSpec("a", runtime="apptainer", gpus=0),
    HostSpec("c", kind="slurm", address="login", runtime="pyxis"),
]
ODD = [
    "",
    "null",
    "[]",
    "[1]",
    "{}",
    '{"files": [1], "Runtimes": [1], "version": 3}',
    "0, GPU-1, H, 5, [N/A], 1",
    "\0\n,",
    "1|2|3|4",
]


class Odd:
    """Answers with odd texts, each query with another one."""

    def __init__(self, code: int | None, first: int) -> None:
        self.code, self.texts = code, itertools.cycle([*ODD[first:], *ODD[:first]])

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        answers = {name: QueryAnswer(self.code, text, text) for name, text in zip(queries, self.texts, strict=False)}
        gpu = QueryAnswer(0, "0, GPU-1, H, 5, 1, 1")
        return answers if "sinfo version" in queries else {**answers, "gpus": gpu}


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
@pytest.mark.parametrize("code", [0, 1, 127, None])
def test_no_answer_is_too_odd(host: HostSpec, code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci_tasks.features.doctor.command.kept_connections", list)
    for first in range(len(ODD)):
        odd = Odd(code, first)
        results = examine_host(host, ["image"], lambda _, odd=odd: nullcontext(odd))  # type: ignore[misc]
        assert results and all(result.text for result in results)
        assert not [result.text for result in results if "an answer cannot be read" in result.text]
