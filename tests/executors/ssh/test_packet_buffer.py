"""What a channel has received. With a real server: tests/integration/test_ssh_link.py."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from paramiko.buffered_pipe import PipeTimeout

from ci_tasks.executors.ssh.packet_buffer import PacketBuffer, use_packet_buffer

LARGE = bytes(range(256)) * 128  # a packet of OpenSSH's


def test_packets_come_out_in_order_however_much_is_asked_for() -> None:
    buffer = PacketBuffer()
    for packet in (b"first ", LARGE, b"last"):
        buffer.feed(packet)
    assert [buffer.read(8), buffer.read(1), len(buffer)] == [b"first " + LARGE[:2], LARGE[2:3], len(LARGE) + 1]
    assert buffer.read(1 << 20) == LARGE[3:] + b"last"


def test_a_read_waits_for_a_packet_and_not_for_all_that_it_asked_for() -> None:
    buffer = PacketBuffer()
    threading.Timer(0.05, buffer.feed, [b"line\n"]).start()
    assert buffer.read(1 << 20) == b"line\n"


def test_a_read_without_a_packet_in_time_raises_what_paramiko_expects() -> None:
    with pytest.raises(PipeTimeout):
        PacketBuffer().read(1, 0.01)


def test_the_end_comes_after_all_packets_and_stays() -> None:
    buffer = PacketBuffer()
    buffer.feed(b"last words")
    buffer.close()
    assert [buffer.read(1 << 20) for _ in range(3)] == [b"last words", b"", b""]


def test_a_read_that_waits_ends_with_the_channel() -> None:
    buffer = PacketBuffer()
    threading.Timer(0.05, buffer.close).start()
    assert buffer.read(1) == b""


def test_a_window_of_single_bytes_does_not_become_as_many_objects() -> None:
    buffer = PacketBuffer()
    for _ in range(100_000):
        buffer.feed(b"x")
    assert len(buffer._packets) < 50
    assert buffer.read(1 << 20) == b"x" * 100_000


def test_an_empty_packet_is_not_the_end() -> None:
    buffer = PacketBuffer()
    buffer.feed(b"")
    buffer.feed(b"more")
    assert buffer.read(10) == b"more"


@pytest.mark.parametrize(("closed", "eof"), [(True, False), (False, True)])
def test_a_channel_that_has_ended_before_it_got_its_buffer_reads_as_ended(closed: bool, eof: bool) -> None:
    channel = SimpleNamespace(in_buffer=None, closed=closed, eof_received=eof)
    use_packet_buffer(channel)
    assert channel.in_buffer is not None and channel.in_buffer.read(1) == b""
