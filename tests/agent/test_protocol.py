"""Frames and records are what they say, whatever bytes arrive in whatever pieces."""

from __future__ import annotations

import json
import os
import typing
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent import protocol
from ci_tasks.agent.codec import from_json
from ci_tasks.agent.protocol import Answer, FrameError, FrameReader, Request, RunSummary, RunUpdate
from ci_tasks.agent.records import CheckoutPart, Plan
from ci_tasks.agent.serve import Session
from ci_tasks.hosts.connection import Receiver, unpacked

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
    assert unpacked(payload) == piece


LARGEST = protocol.MAX_UNPACKED


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"", "truncated"),
        (b"no zlib", "cannot be unpacked"),
        (zlib.compress(b"line\n" * 1000)[:-1], "truncated"),
        (zlib.compress(b"\0" * (LARGEST + 1)), f"larger than {LARGEST}"),
        (zlib.compress(b"\0" * (1 << 28)), f"larger than {LARGEST}"),
        (zlib.compress(b"line\n") + b"more", "followed by more"),
    ],
)
def test_a_packed_piece_that_is_broken_or_a_bomb_is_refused(packed: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        unpacked(packed)


@pytest.mark.parametrize("noise", [b"Welcome to the cluster!\n", b"Q" + b"\xff" * 16, b"\0" * 20])
def test_what_is_no_frame_is_refused(noise: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(noise))


@pytest.mark.parametrize("kind", protocol.MAX_BYTES)
def test_a_frame_that_is_longer_than_its_kind_may_be_is_refused_before_it_has_come(kind: bytes) -> None:
    head = kind + bytes(12) + (protocol.MAX_BYTES[kind] + 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="a frame of kind"):
        list(FrameReader().feed(head))


VERBS = {*typing.get_args(protocol.Verb)}
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


# -- what a run brings home, and what a host may not do with it -------------------------------------------------------

Frames = Iterable[tuple[bytes, bytes]]
REFUSED = FrameError, OSError


@pytest.fixture
def there(tmp_path: Path) -> Path:
    run = tmp_path / "there"
    (run / "artifacts/container-1/logs").mkdir(parents=True)
    (run / "artifacts/junit.xml").write_text("<testsuites/>")
    (run / "artifacts/container-1/logs/raylet.out").write_bytes(b"\0ray\n" * 1000)
    (run / "docker.json").write_text("[]")
    (run / "plan.json").write_text("{}")
    return run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def receive(frames: Frames, here: Path) -> list[str]:
    files = Receiver(str(here))
    try:
        for kind, payload in frames:
            files.take(kind, 0, payload)
    finally:
        files.close()
    return files.paths


def fetch(there: Path, here: Path) -> list[str]:
    return receive(protocol.pack(str(there)), here)


def entry(path: str | bytes, content: bytes = b"bad") -> list[tuple[bytes, bytes]]:
    name = path if isinstance(path, bytes) else path.encode("utf-8", "surrogatepass")
    return [(protocol.FILE, name), (protocol.DATA, content)]


@pytest.mark.parametrize("names", [("artifacts/x", "artifacts/x/y"), ("artifacts/x/y", "artifacts/x")])
def test_a_file_in_the_place_of_a_directory_is_the_hosts_fault(here: Path, names: tuple[str, str]) -> None:
    with pytest.raises(FrameError, match="a file b'artifacts/x"):
        receive([frame for name in names for frame in entry(name)], here)


def test_small_files_and_artifacts_arrive_as_they_were(there: Path, here: Path) -> None:
    names = fetch(there, here)
    assert sorted(names) == ["artifacts/container-1/logs/raylet.out", "artifacts/junit.xml", "docker.json"]
    for name in names:
        assert (here / name).read_bytes() == (there / name).read_bytes()


def test_a_link_among_the_artifacts_is_not_followed(there: Path, here: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (there / "artifacts/link").symlink_to(tmp_path / "secret")
    os.mkfifo(there / "artifacts/pipe")
    assert "artifacts/link" not in fetch(there, here)


ODD = [b"two\nlines", b"\xff\xfe", b"\x1b[2J"]


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_a_name_that_a_client_refuses_is_not_sent_and_said(there: Path, here: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(there / "artifacts"), name), "w") as out:
        out.write("odd")
    assert "artifacts/junit.xml" in fetch(there, here)
    (left,) = (here / protocol.NOT_SENT).read_text().splitlines()
    assert "the name" in left
    assert sorted(path.name for path in (here / "artifacts").iterdir()) == ["container-1", "junit.xml", "not-sent.txt"]


def test_what_is_over_the_limits_is_not_sent_and_said(there: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FILES", 12)
    for number in range(20):
        (there / f"artifacts/n{number:02d}").touch()
    assert len(fetch(there, here)) == 12
    assert len((here / protocol.NOT_SENT).read_text().splitlines()) == 23 - 11


HOSTILE = {
    "above": entry("../outside"),
    "absolute": entry("/etc/outside"),
    "above by a detour": entry("artifacts/../../outside"),
    "nothing between": entry("artifacts//outside"),
    "a record": entry("record.json"),
    "a plan": entry("plan.json"),
    "a script": entry("run.sh"),
    "a place": entry("remote.json"),
    "the directory itself": entry("artifacts"),
    "NUL": entry("artifacts/a\0b"),
    "a newline": entry("artifacts/a\nb"),
    "half of a character": entry("artifacts/\ud83d"),
    "no UTF-8": entry(b"artifacts/\xff"),
    "a long name": entry("artifacts/" + "a" * 256),
    "a deep path": entry("artifacts/" + "a/" * 200 + "a"),
    "no path": entry(""),
    "bytes of no file": [(protocol.DATA, b"bad")],
    "a file in a file": [*entry("artifacts/x"), *entry("artifacts/x/y")],
    "a file for a directory": [*entry("artifacts/x/y"), *entry("artifacts/x")],
    "many files": [each for number in range(13) for each in entry(f"artifacts/{number}", b"")],
    "many bytes": [*entry("artifacts/x", b"x" * 600), *entry("artifacts/y", b"x" * 600)],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_bundle_writes_nothing_outside(what: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FILES", 12)
    monkeypatch.setattr(protocol, "MAX_TOTAL", 1000)
    with pytest.raises(REFUSED):
        receive(HOSTILE[what], here)
    assert {path.name for path in here.parent.iterdir()} == {"here"}
    assert {path.name for path in here.iterdir()} <= {"artifacts"}


def test_a_link_that_stands_here_already_is_not_written_through(here: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (here / "artifacts").symlink_to(tmp_path / "elsewhere")
    for path in ("artifacts/file", "artifacts/new/file"):
        with pytest.raises(REFUSED):
            receive(entry(path), here)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (here / "docker.json").symlink_to(tmp_path / "elsewhere" / "file")
    with pytest.raises(REFUSED):
        receive(entry("docker.json"), here)
    assert list((tmp_path / "elsewhere").iterdir()) == []
