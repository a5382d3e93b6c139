"""What a client is told of the runs that it watches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.runner.link import frames
from ci_tasks.runner.link.tail import Tail

ENDED = json.dumps({"state": "ended", "log_sha256": "x"})


class Client:
    """Takes what is sent, until it goes away."""

    def __init__(self) -> None:
        self.reader, self.said, self.is_gone = frames.Reader(), [], False  # type: ignore[var-annotated]
        self.when_told: Callable[[dict[str, Any]], None] = lambda said: None

    def __call__(self, data: bytes) -> None:
        if self.is_gone:
            raise BrokenPipeError
        for kind, payload in self.reader.feed(data):
            if kind == frames.JSON:
                self.said.append(json.loads(payload))
                self.when_told(self.said[-1])

    def overs(self, count: int) -> bool:
        return sum(bool(said.get("over")) for said in self.said) == count


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.is_gone = True


@pytest.fixture
def tail(client: Client) -> Tail:
    made = Tail(client)
    made.start()
    return made


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_that_is_asked_for_again_at_its_very_end_is_told_again(
    client: Client, tail: Tail, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text(ENDED)

    def again(said: dict[str, Any]) -> None:  # in the middle of telling: as early as a client can ask
        if said.get("over") and client.overs(1):
            tail.watch(1, str(tmp_path), 0)

    client.when_told = again
    tail.watch(1, str(tmp_path), 0)
    until(lambda: client.overs(2))


def test_a_status_that_cannot_be_read_is_looked_at_again(client: Client, tail: Tail, tmp_path: Path) -> None:
    broken, other = tmp_path / "broken", tmp_path / "other"
    for run in (broken, other):
        run.mkdir()
    (broken / "status.json").mkdir()
    (other / "status.json").write_text(ENDED)
    tail.watch(1, str(broken), 0)
    tail.watch(2, str(other), 0)
    until(lambda: client.overs(1))
    (broken / "status.json").rmdir()
    (broken / "status.json").write_text(ENDED)
    until(lambda: client.overs(2))


def test_it_ends_when_the_client_is_gone_and_does_not_take_the_others_along(
    client: Client, tail: Tail, tmp_path: Path
) -> None:
    """What the client asked to be removed is being removed by other threads of this process."""
    client.is_gone = True
    (tmp_path / "status.json").write_text(ENDED)
    tail.watch(1, str(tmp_path), 0)
    tail.join(20)
    assert not tail.is_alive()
