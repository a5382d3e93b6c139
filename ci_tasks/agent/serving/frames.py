"""The bytes between a client and a host: frames, each a kind, a length and a payload. Pure.

A host's output begins with MAGIC; whatever stands before it, such as the greeting of a login script, is skipped.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Iterator, Tuple, Union

from ..codec import encode

if TYPE_CHECKING:  # what only copies frames loads no messages
    from .messages import ClientMessage, HostMessage

MAGIC = b"\0ci-tasks 1\n"
JSON = b"J"  # a ClientMessage or a HostMessage
DATA = b"D"  # bytes of a pack, to the host; empty at the end of the pack
PART = b"P"  # bytes of a response, to the client: the request's number and the bytes
LOG = b"L"  # bytes of a log, to the client: the run's key, the offset and the bytes
PACKED_LOG = b"Z"  # the same, with the bytes packed by zlib
HEARTBEAT = b"B"  # empty
# To the host, with random bytes: the client leaves, and another one may use the same server. The host repeats it as the
# last frame for this client.
GOODBYE = b"E"

# The longest payload of each kind. That of a message is for paths of a checkout with many changes.
MAX_BYTES = {JSON: 1 << 24, DATA: 1 << 20, PART: 1 << 20, LOG: 1 << 20, PACKED_LOG: 1 << 20, HEARTBEAT: 0, GOODBYE: 16}
GOODBYE_HEAD = GOODBYE + b"\0\0\0\x10"
GOODBYE_BYTES = len(GOODBYE_HEAD) + 16
MAX_UNPACKED = 1 << 17  # bytes of a log in one frame
_HEAD = struct.Struct(">cI")
_PART = struct.Struct(">I")
_LOG = struct.Struct(">IQ")
_FASTEST = 1  # zlib's level; it packs 170 MB of a real log in a second, to a ninth

Frame = Tuple[bytes, bytes]


class FrameError(ValueError):
    """Bytes that are no frame: another program answers, or something wrote in between."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


def message(value: Union[ClientMessage, HostMessage]) -> bytes:
    # ASCII, since a path that is no UTF-8 holds lone surrogates, which only their escaped form can carry.
    return frame(JSON, json.dumps(encode(value, versioned=False, compact=True)).encode("ascii"))


def part(request: int, chunk: bytes) -> bytes:
    return frame(PART, _PART.pack(request) + chunk)


def log(key: int, offset: int, chunk: bytes) -> bytes:
    return frame(LOG, _LOG.pack(key, offset) + chunk)


def packed_log(key: int, offset: int, chunk: bytes) -> bytes:
    return frame(PACKED_LOG, _LOG.pack(key, offset) + zlib.compress(chunk, _FASTEST))


def read_part(payload: bytes) -> Tuple[int, bytes]:
    """The request's number and the bytes. Raises FrameError."""
    (number,) = _unpacked(payload, _PART)
    return number, payload[_PART.size :]


def read_log(kind: bytes, payload: bytes) -> Tuple[int, int, bytes]:
    """The run's key, the offset in its log and the bytes, of a LOG or PACKED_LOG. Raises FrameError."""
    key, offset = _unpacked(payload, _LOG)
    chunk = payload[_LOG.size :]
    if kind == LOG:
        return key, offset, chunk
    unpacking = zlib.decompressobj()
    try:
        chunk = unpacking.decompress(chunk, MAX_UNPACKED)
    except zlib.error as error:
        raise FrameError("bytes of a log that cannot be unpacked: %s" % error) from None
    if not unpacking.eof or unpacking.unused_data:
        raise FrameError("bytes of a log that are cut, more than %d, or followed by others" % MAX_UNPACKED)
    return key, offset, chunk


def _unpacked(payload: bytes, head: struct.Struct) -> Tuple[int, ...]:
    if len(payload) < head.size:
        raise FrameError("a frame of %d bytes, which is too short" % len(payload))
    return head.unpack_from(payload)


class FrameReader:
    """Decodes frames from chunks of any size."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The kind and payload of each frame that is complete. Raises FrameError."""
        self._held += chunk
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if kind not in MAX_BYTES:
                raise FrameError("bytes that are no frame: %r" % bytes(self._held[:40]))
            if length > MAX_BYTES[kind]:
                raise FrameError("a frame of kind %s with %d bytes" % (kind.decode(), length))
            end = _HEAD.size + length
            if len(self._held) < end:
                break
            with memoryview(self._held) as held:  # to copy it once: these may be all bytes of a large log
                payload = bytes(held[_HEAD.size : end])
            del self._held[:end]
            yield kind, payload
