"""The server's loop: requests in and answers out over a socket, as a client has them."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent import archive
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_status
from ci_tasks.agent.serving import frames, messages
from ci_tasks.hosts import bootstrap

SOURCES = archive.build()


class Client:
    """Speaks to a server of its own. `said` are the host's messages, `parts` what came for a request."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._sock, theirs = socket.socketpair()
        self._sock.settimeout(60)
        command = bootstrap.command(str(home), archive.digest(SOURCES), "", shlex.quote(sys.executable))
        with theirs:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", command], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=theirs.fileno()
            )
        packed = archive.packed(SOURCES)
        self.send(b"\n" + bootstrap.header(len(packed)) + packed)
        self._reader = frames.FrameReader()
        self.said: list[dict[str, Any]] = []
        self.raw = b""

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def ask(self, number: int, request: messages.Request) -> None:
        self.send(frames.message(messages.ClientMessage(number, request)))

    def hello(self) -> dict[str, Any]:
        while frames.MAGIC not in self.raw:
            self.raw += self._receive()
        rest = self.raw.partition(frames.MAGIC)[2]
        self.raw = b""
        self._take(rest)
        while not self.said:
            self._take(self._receive())
        hello: dict[str, Any] = self.said.pop(0)["hello"]
        return hello

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            for message in self.said:
                if (message.get("response") or {}).get("id") == number:
                    response: dict[str, Any] = message["response"]
                    return response
            self._take(self._receive())

    def repeated(self, goodbye: bytes) -> bool:
        while goodbye not in self.raw:
            self.raw += self._receive()
        self.raw = b""
        return True

    def _receive(self) -> bytes:
        chunk = self._sock.recv(1 << 16)
        assert chunk, "the server has ended"
        return chunk

    def _take(self, data: bytes) -> None:
        for kind, payload in self._reader.feed(data):
            if kind == frames.JSON:
                self.said.append(json.loads(payload))

    def close(self) -> None:
        self._sock.close()
        self.process.wait(60)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path / "home")
    yield made
    made.close()


def plan_of(client: Client, name: str = "01") -> tuple[str, RunDir]:
    path = str(client.home / "runs/batch" / name)
    return path, RunDir(path)


def test_requests_that_cannot_be_understood_are_refused_and_end_nothing(client: Client) -> None:
    client.hello()
    for payload in (b"{", b"[]", b'{"id": 4, "request": {"do": "no such thing"}}'):
        client.send(frames.frame(frames.JSON, payload))
    client.ask(5, messages.ListRuns())
    assert client.answer(4)["code"] == "unknown"
    assert client.answer(5) == {"id": 5}


def test_a_question_that_takes_long_keeps_no_other_waiting(client: Client) -> None:
    client.hello()
    wait = ("sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done', f"{client.home}/go")
    client.ask(1, messages.RunPrograms({"slow": wait}, 50.0))
    client.ask(2, messages.RunPrograms({"go": ("touch", f"{client.home}/go")}, 50.0))
    assert client.answer(2)["result"]["outputs"]["go"]["code"] == 0
    assert client.answer(1)["result"]["outputs"]["slow"]["code"] == 0


def test_what_follows_a_request_that_is_refused_is_taken_for_no_other(client: Client) -> None:
    client.hello()
    for number in (1, 3):
        client.ask(number, messages.StoreProgram("py-spy-", "no digest"))
        for _ in range(3):
            client.send(frames.frame(frames.DATA, os.urandom(1 << 20)))
        client.send(frames.frame(frames.DATA))
    client.ask(4, messages.ListRuns())
    assert client.answer(1)["code"] == client.answer(3)["code"] == "failed"
    assert client.answer(4) == {"id": 4}


def test_a_run_that_is_cancelled_before_it_starts_never_does(client: Client) -> None:
    """By whoever asks, and over another connection than the one that starts it."""
    client.hello()
    path, run = plan_of(client)
    client.ask(
        1, messages.Create(path, Plan(id="batch.01"), f"#!/bin/bash\ntouch {shlex.quote(str(client.home))}/ran\n")
    )
    assert client.answer(1) == {"id": 1}
    other = Client(client.home)
    other.hello()
    other.ask(1, messages.Cancel(path))
    assert other.answer(1) == {"id": 1}
    other.close()
    client.ask(2, messages.StartRun(path))
    client.ask(3, messages.Follow((messages.FollowedRun(7, path, 0),)))
    assert client.answer(2) == {"id": 2}
    assert client.answer(3) == {"id": 3}
    assert (read_status(run).state, read_status(run).end) == ("ended", "cancelled")
    assert not (client.home / "ran").exists()


def test_a_client_that_says_goodbye_leaves_the_server_to_the_next_one(client: Client) -> None:
    client.hello()
    goodbye = frames.frame(frames.GOODBYE, b"0123456789abcdef")
    client.ask(1, messages.RunPrograms({"slow": ("sleep", "300")}, 300.0))
    client.send(goodbye)
    assert client.repeated(goodbye)
    client.send(frames.frame(frames.HEARTBEAT))
    assert client.hello()["home"] == str(client.home)
    client.ask(2, messages.ListRuns())
    assert client.answer(2) == {"id": 2}


def test_a_server_whose_client_has_gone_ends_and_the_run_goes_on(client: Client, tmp_path: Path) -> None:
    client.hello()
    path, run = plan_of(client)
    script = f"#!/bin/bash\nuntil [ -e {shlex.quote(str(tmp_path))}/go ]; do sleep 0.02; done; exit 5\n"
    client.ask(1, messages.Create(path, Plan(id="batch.01", workspace=""), script))
    client.ask(2, messages.StartRun(path))
    assert client.answer(2) == {"id": 2}
    client.close()
    (tmp_path / "go").touch()
    other = Client(client.home)
    other.hello()
    other.ask(1, messages.Follow((messages.FollowedRun(7, path, 0),)))
    assert other.answer(1) == {"id": 1}
    while not any((message.get("update") or {}).get("over") for message in other.said):
        other._take(other._receive())
    assert read_status(run).exit_code == 5
    other.close()
