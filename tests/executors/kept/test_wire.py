"""What a command and the process that keeps its connection say to each other."""

from __future__ import annotations

import socket
import threading

from ci_tasks.executors.kept import wire


def test_a_frame_that_the_socket_takes_in_parts_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    payload, received = bytes(range(256)) * (1 << 14), list[bytes]()
    with ours, theirs:
        ours.settimeout(20)  # such a socket takes no more than it has room for
        reader = threading.Thread(
            target=lambda: received.append(wire.exactly(theirs, wire.HEAD.size + len(payload))), daemon=True
        )
        reader.start()
        wire.send(ours, wire.OUTPUT, payload)
        reader.join(20)
    assert received == [wire.HEAD.pack(wire.OUTPUT, len(payload)) + payload]
