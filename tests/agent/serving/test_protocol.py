"""Frames and records are what they say, whatever bytes arrive in whatever pieces."""

from __future__ import annotations

import json
import typing
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.codec import RecordError, from_json
from ci_tasks.agent.records import CheckoutPart, Plan
from ci_tasks.agent.serving import protocol
from ci_tasks.agent.serving.protocol import Answer, FrameReader, Request, RunSummary, RunUpdate
from ci_tasks.agent.serving.requests import Session

KINDS = [protocol.REQUEST, protocol.DATA, protocol.FILE]


@given(
    sent=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=300))
    ),
    cuts=st.lists(st.integers(0, 3000)),
)
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(sent: list[protocol.Frame], cuts: list[int]) -> None:
    stream = b"".join(protocol.frame(kind, payload, number, offset) for kind, number, offset, payload in sent)
    reader, got, at = FrameReader(), [], 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        got += list(reader.feed(stream[at:cut]))
        at = cut
    assert got == sent


def test_a_message_carries_names_that_are_no_utf8() -> None:
    request = Request("cancel", "a\udcffb")
    ((_, _, _, payload),) = FrameReader().feed(protocol.message(protocol.REQUEST, 1, request))
    assert json.loads(payload) == {"do": "cancel", "dir": "a\udcffb"}


def test_a_packed_piece_of_a_log_is_short_and_whole() -> None:
    piece = b"step 3 of 10\n" * 5000
    ((_, number, offset, payload),) = FrameReader().feed(protocol.packed(piece, 7, 1 << 40))
    assert (number, offset) == (7, 1 << 40)
    assert len(payload) < len(piece) / 10
    assert protocol.unpacked(payload) == piece


LARGEST = protocol.MAX_UNPACKED


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
    with pytest.raises(protocol.FrameError, match=message):
        protocol.unpacked(packed)


@pytest.mark.parametrize("noise", [b"Welcome to the cluster!\n", b"Q" + b"\xff" * 16, b"\0" * 20])
def test_what_is_no_frame_is_refused(noise: bytes) -> None:
    with pytest.raises(protocol.FrameError):
        list(FrameReader().feed(noise))


@pytest.mark.parametrize("kind", protocol.MAX_BYTES)
def test_a_frame_that_is_longer_than_its_kind_may_be_is_refused_before_it_has_come(kind: bytes) -> None:
    head = kind + bytes(12) + (protocol.MAX_BYTES[kind] + 1).to_bytes(4, "big")
    with pytest.raises(protocol.FrameError, match="a frame of kind"):
        list(FrameReader().feed(head))


VERBS = {verb for kind in typing.get_args(protocol.Verb) for verb in typing.get_args(kind) or [kind]}
RECORDS: list[typing.Any] = [
    *(Request(verb) for verb in sorted(VERBS)),
    Request("create", "/d", plan=Plan(id="b.01"), script="echo\n", parts=(CheckoutPart("", "1" * 40, "2" * 40),)),
    Request("create", "/d", start=True, secrets={"TOKEN": "x"}, sbatch_script="#!/bin/bash\n"),
    Request("follow", "/d", offset=1 << 40),
    Request("programs", commands={"a": ("nvidia-smi", "-L")}, seconds=2.5),
    Answer(left=("a",)),
    Answer(runs=(RunSummary("/runs/b/01"),)),
    Answer("x", "busy"),
    RunUpdate(over=True, code="missing"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: getattr(record, "do", type(record).__name__))
def test_a_record_arrives_as_it_was_sent(record: typing.Any) -> None:
    ((_, _, _, payload),) = FrameReader().feed(protocol.message(protocol.ANSWER, 1, record))
    assert from_json(type(record), payload, where="record") == record


def test_the_host_handles_every_request() -> None:
    assert not {verb for verb in VERBS - {"follow"} if not callable(getattr(Session, verb, None))}  # the server's own


def test_secrets_do_not_show_in_a_request_that_is_printed() -> None:
    assert "hunter2" not in repr(Request("create", "/d", secrets={"TOKEN": "hunter2"}))


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(RecordError, match=r"^request: do: "):
        from_json(Request, '{"do": "dance"}', where="request")
