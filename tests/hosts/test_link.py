"""A link through a pipe keeps what the protocol promises."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ci_tasks.hosts.link import Link, LinkDied, PipeLink, Stream


@pytest.fixture
def link() -> PipeLink:
    return PipeLink({"PATH": os.environ["PATH"], "COLOUR": "blue"})


def whole(stream: Stream) -> bytes:
    out = b""
    while chunk := stream.recv(1 << 16):
        out += chunk
    return out


def test_a_command_has_input_output_errors_and_an_end(link: PipeLink) -> None:
    stream: Stream = link.open("cat; echo $COLOUR; echo oh >&2; exit 3")
    stream.send(b"hi\n")
    stream.shut_write()
    assert whole(stream) == b"hi\nblue\n"
    assert (stream.exit_status(), stream.stderr_tail()) == (3, b"oh\n")
    stream.close()


def test_much_goes_through_unchanged_while_errors_pour_out(link: PipeLink) -> None:
    data = os.urandom(3_000_000)
    stream = link.open("head -c 1000000 /dev/zero >&2; cat")

    def send() -> None:
        stream.send(data)
        stream.shut_write()

    sender = threading.Thread(target=send)
    sender.start()
    assert whole(stream) == data
    sender.join()
    assert len(stream.stderr_tail()) == 4096
    stream.close()


def test_a_reader_waits_no_longer_than_it_said(link: PipeLink) -> None:
    stream = link.open("sleep 60")
    stream.settimeout(0.01)
    with pytest.raises(TimeoutError):
        stream.recv(1)
    link.close()


def test_what_a_signal_ended_has_no_status(link: PipeLink) -> None:
    stream = link.open("kill -9 $$")
    assert (stream.recv(1), stream.exit_status()) == (b"", None)
    stream.close()


def test_sending_to_a_command_that_has_ended_is_a_dead_link(link: PipeLink) -> None:
    stream = link.open("exit 0")
    assert stream.recv(1) == b""
    with pytest.raises(LinkDied):
        stream.send(bytes(1 << 20))
    stream.close()


def test_a_cut_link_fails_for_everyone_also_for_who_waits(link: PipeLink) -> None:
    stream = link.open("sleep 60")
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            stream.recv(1)
        except LinkDied as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    link.cut()
    waiting.join()
    assert failed
    assert not link.alive
    for fails in (lambda: stream.recv(1), lambda: stream.send(bytes(1 << 20)), lambda: link.open("true")):
        with pytest.raises(LinkDied):
            fails()
    link.close()


def test_closing_ends_the_command_and_a_waiting_reader(link: PipeLink, tmp_path: Path) -> None:
    stream = link.open(f"echo $$ > {tmp_path}/pid; echo there; sleep 60")
    assert stream.recv(10) == b"there\n"
    heard: list[bytes] = []
    waiting = threading.Thread(target=lambda: heard.append(stream.recv(1)))
    waiting.start()
    stream.close()
    stream.close()
    waiting.join()
    assert heard == [b""]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_link_is_a_link(link: PipeLink) -> None:
    as_protocol: Link = link
    assert as_protocol.alive
    assert as_protocol.interactive("exit 4") == 4
    assert as_protocol.description
