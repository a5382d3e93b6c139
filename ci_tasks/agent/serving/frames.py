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
# What the bootstrap sends in place of frames.
ASKS_FOR_AGENT = b"?"  # the agent that the client expected is not on the host
PYTHON_TOO_OLD = b"!"
HOME_REFUSED = b"#"  # the directory for everything of ours is another user's, or cannot be written
INPUT_TAKEN = b"<"  # something on the host read what was for the bootstrap

JSON = b"J"  # a ClientMessage or a HostMessage
DATA = b"D"  # bytes of a pack, to the host; empty at the end of the pack
PART = b"P"  # bytes of a response, to the client: the request's number and the bytes
LOG = b"L"  # bytes of a log, to the client: the run's key, the offset and the bytes
PACKED_LOG = b"Z"  # the same, with the bytes packed by zlib
HEARTBEAT = b"B"  # empty
# To the host, with random bytes: the client leaves, and another one may use the same server. It is repeated by the host
# as the last that comes for this client.
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
    buffer = LogBuffer(len(chunk))
    buffer.chunk[:] = chunk
    return bytes(buffer.frame(key, offset, len(chunk)))


class LogBuffer:
    """A frame of a log whose bytes are read into `chunk`: they are copied no more, and the next frame allocates
    nothing."""

    def __init__(self, size: int) -> None:
        self._frame = memoryview(bytearray(_HEAD.size + _LOG.size + size))
        self.chunk = self._frame[_HEAD.size + _LOG.size :]

    def frame(self, key: int, offset: int, count: int) -> memoryview:
        """The frame of the first `count` bytes of `chunk`, until they are read into it anew."""
        _HEAD.pack_into(self._frame, 0, LOG, _LOG.size + count)
        _LOG.pack_into(self._frame, _HEAD.size, key, offset)
        return self._frame[: _HEAD.size + _LOG.size + count]


def packed_log(key: int, offset: int, chunk: Union[bytes, memoryview]) -> bytes:
    return frame(PACKED_LOG, _LOG.pack(key, offset) + zlib.compress(chunk, _FASTEST))


def read_part(payload: bytes) -> Tuple[int, bytes]:
    """The request's number and the bytes. Raises FrameError."""
    _check_length(payload, _PART)
    return _PART.unpack_from(payload)[0], payload[_PART.size :]


def read_log(payload: bytes) -> Tuple[int, int, bytes]:
    """The run's key, the offset in its log and the bytes. Raises FrameError."""
    _check_length(payload, _LOG)
    key, offset = _LOG.unpack_from(payload)
    return key, offset, payload[_LOG.size :]


def read_packed_log(payload: bytes) -> Tuple[int, int, bytes]:
    """The run's key, the offset in its log and the bytes. Raises FrameError."""
    key, offset, packed = read_log(payload)
    unpacking = zlib.decompressobj()
    try:
        chunk = unpacking.decompress(packed, MAX_UNPACKED)
    except zlib.error as error:
        raise FrameError("bytes of a log that cannot be unpacked: %s" % error) from None
    if not unpacking.eof or unpacking.unused_data:
        raise FrameError("bytes of a log that are cut, more than %d, or followed by others" % MAX_UNPACKED)
    return key, offset, chunk


def _check_length(payload: bytes, head: struct.Struct) -> None:
    if len(payload) < head.size:
        raise FrameError("a frame of %d bytes, which is too short" % len(payload))


class FrameReader:
    """Decodes frames from chunks of any size."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Raises FrameError."""
        self._held += chunk
        at = 0
        while len(self._held) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held, at)
            if kind not in MAX_BYTES:
                raise FrameError("bytes that are no frame: %r" % bytes(self._held[at : at + 40]))
            if length > MAX_BYTES[kind]:
                raise FrameError("a frame of kind %s with %d bytes" % (kind.decode(), length))
            end = at + _HEAD.size + length
            if len(self._held) < end:
                break
            with memoryview(self._held) as held:  # to copy it once: these may be all bytes of a large log
                payload = bytes(held[at + _HEAD.size : end])
            yield kind, payload
            at = end
        del self._held[:at]
