"""The sockets below SSH. With real servers: tests/integration/test_ssh_link.py."""

from __future__ import annotations

import socket

from ci_tasks.executors.ssh.sockets import ReceivedBytes


def test_what_was_read_ahead_comes_in_order_and_counts_as_one_sign_of_life() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"header, then a packet")
        received = ReceivedBytes(ours)
        assert [received.recv(8), received.recv(6), received.recv(1000)] == [b"header, ", b"then a", b" packet"]
        assert received.count == 1
        theirs.sendall(b"the next")
        assert (received.recv(1000), received.count) == (b"the next", 2)
        theirs.close()
        assert received.recv(1) == b""
