"""What a channel has received and nobody has read yet, as the packets that it came in.

It takes the place of paramiko's BufferedPipe, which copies every byte three times, and moves all that it holds with
each read: of a log that comes faster than it is passed on, that is up to the whole window.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

_SMALL = 4096  # bytes below which packets are joined: a window of single bytes must not become millions of objects


def use_packet_buffer(channel: Any) -> None:
    """Give one to a channel whose command has not begun, so that nothing has come yet."""
    buffer = channel.in_buffer = PacketBuffer()
    if channel.closed or channel.eof_received:  # the buffer that was there before may have heard of it
        buffer.close()


class PacketBuffer:
    """Fed by paramiko's thread, read by one other. The channel's window bounds it."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._packets: deque[bytes | memoryview] = deque()
        self._closed = False

    def feed(self, data: bytes) -> None:
        with self._changed:
            if self._packets and len(self._packets[-1]) + len(data) <= _SMALL:
                self._packets.append(bytes(self._packets.pop()) + data)
            elif data:
                self._packets.append(data)
            self._changed.notify()

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """What is here, up to `nbytes`; nothing at the end. Raises paramiko's PipeTimeout."""
        from paramiko.buffered_pipe import PipeTimeout

        with self._changed:
            if not self._changed.wait_for(lambda: self._packets or self._closed, timeout):
                raise PipeTimeout
            taken: list[bytes | memoryview] = []
            while self._packets and nbytes:
                packet = self._packets.popleft()
                if len(packet) > nbytes:
                    self._packets.appendleft(memoryview(packet)[nbytes:])
                    packet = packet[:nbytes]
                taken.append(packet)
                nbytes -= len(packet)
        return b"".join(taken)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._packets))
