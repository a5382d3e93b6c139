"""Frames and messages are what they say, whatever bytes arrive in whatever pieces."""

from __future__ import annotations

import typing
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.codec import RecordError, decode, encode
from ci_tasks.agent.records import CheckoutPart, Plan
from ci_tasks.agent.serving import frames, messages
from ci_tasks.agent.serving.frames import FrameReader
from ci_tasks.agent.serving.messages import Cancel, ClientMessage, HostMessage, Response, Result, RunSummary
from ci_tasks.agent.serving.requests import ServeSession


@given(
    payloads=st.lists(st.tuples(st.sampled_from([frames.JSON, frames.DATA, frames.LOG]), st.binary(max_size=300))),
    cuts=st.lists(st.integers(0, 3000)),
)
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    payloads: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frames.frame(kind, payload) for kind, payload in payloads)
    reader, got, at = FrameReader(), [], 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        got += list(reader.feed(stream[at:cut]))
        at = cut
    assert got == payloads


def test_a_message_carries_names_that_are_no_utf8() -> None:
    ((kind, payload),) = FrameReader().feed(frames.message(ClientMessage(1, Cancel("a\udcffb"))))
    import json

    assert kind == frames.JSON
    assert json.loads(payload) == {"id": 1, "request": {"dir": "a\udcffb", "do": "cancel"}}


def test_a_packed_piece_of_a_log_is_short_and_whole() -> None:
    piece = b"step 3 of 10\n" * 5000
    ((kind, payload),) = FrameReader().feed(frames.packed_log(7, 1 << 40, piece))
    assert kind == frames.PACKED_LOG
    assert len(payload) < len(piece) / 10
    assert frames.read_log(kind, payload) == (7, 1 << 40, piece)


HEAD = b"\0" * 12
LARGEST = frames.MAX_UNPACKED


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"", "cut"),
        (b"no zlib", "cannot be unpacked"),
        (zlib.compress(b"line\n" * 1000)[:-1], "cut"),
        (zlib.compress(b"\0" * (LARGEST + 1)), f"more than {LARGEST}"),
        (zlib.compress(b"\0" * (1 << 28)), f"more than {LARGEST}"),
        (zlib.compress(b"line\n") + b"more", "followed by others"),
    ],
)
def test_a_packed_piece_that_is_broken_or_a_bomb_is_refused(packed: bytes, message: str) -> None:
    with pytest.raises(frames.FrameError, match=message):
        frames.read_log(frames.PACKED_LOG, HEAD + packed)


@pytest.mark.parametrize("noise", [b"Welcome to the cluster!\n", b"J\xff\xff\xff\xff", b"\0" * 20])
def test_what_is_no_frame_is_refused(noise: bytes) -> None:
    with pytest.raises(frames.FrameError):
        list(FrameReader().feed(noise))


@pytest.mark.parametrize("kind", frames.MAX_BYTES)
def test_a_frame_that_is_longer_than_its_kind_may_be_is_refused_before_it_has_come(kind: bytes) -> None:
    with pytest.raises(frames.FrameError, match="a frame of kind"):
        list(FrameReader().feed(kind + (frames.MAX_BYTES[kind] + 1).to_bytes(4, "big")))


@pytest.mark.parametrize("payload", [b"", b"\0\0\0"])
def test_a_piece_without_the_number_of_its_run_is_refused(payload: bytes) -> None:
    with pytest.raises(frames.FrameError, match="too short"):
        frames.read_log(frames.LOG, payload)
    with pytest.raises(frames.FrameError, match="too short"):
        frames.read_part(payload)


EACH: list[messages.Request] = [
    messages.Receive(),
    messages.Create("/d", Plan(id="b.01"), "echo\n", (CheckoutPart("", "1" * 40, "2" * 40),)),
    messages.StartRun("/d", {"TOKEN": "x"}, "#!/bin/bash\n"),
    messages.Follow((messages.FollowedRun(3, "/d", 1 << 40),)),
    messages.Cancel("/d", kill=True),
    messages.Collect("/d"),
    messages.Clear("/d", shared=False),
    messages.LookAtProcesses("/d", "abc"),
    messages.DescribeRun("/d"),
    messages.RunPrograms({"a": ("nvidia-smi", "-L")}, 2.5),
    messages.ListRuns(),
    messages.Prune(14.0),
]


@pytest.mark.parametrize("request_", EACH, ids=lambda request: request.do)
def test_a_request_arrives_as_it_was_sent(request_: messages.Request) -> None:
    sent = encode(ClientMessage(1, request_), versioned=False, compact=True)
    assert decode(ClientMessage, sent, where="request") == ClientMessage(1, request_)


def test_the_host_handles_every_request() -> None:
    assert {type(request) for request in EACH} == set(typing.get_args(messages.Request))
    verbs = {request.do.replace("-", "_") for request in EACH} - {"follow"}  # the server's own
    assert not {verb for verb in verbs if not callable(getattr(ServeSession, verb, None))}


@pytest.mark.parametrize(
    "response",
    [
        Response(1, Result(left=("a",))),
        Response(2, Result(runs=(RunSummary("/runs/b/01"),))),
        Response(3, error="x", code="busy"),
    ],
)
def test_a_response_arrives_as_it_was_sent(response: Response) -> None:
    sent = encode(HostMessage(response=response), versioned=False, compact=True)
    assert decode(HostMessage, sent, where="response").response == response


def test_secrets_do_not_show_in_a_request_that_is_printed() -> None:
    assert "hunter2" not in repr(messages.StartRun("/d", {"TOKEN": "hunter2"}))


def test_an_unknown_request_is_named() -> None:
    with pytest.raises(RecordError, match=r"^request: request\.do: expected one of .*got 'dance'"):
        decode(ClientMessage, {"id": 1, "request": {"do": "dance"}}, where="request")
