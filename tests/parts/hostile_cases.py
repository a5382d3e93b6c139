"""The kinds of lies: each makes a server from a seed, and says what a client does with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from random import Random
from typing import Any

from ci_tasks.agent import protocol
from ci_tasks.agent.protocol import DATA, Answer, Hello, Request, RunSummary
from ci_tasks.agent.records import DockerInvocations, Environment, Event, LeftOut, QueryAnswer, RunDescription, Status
from ci_tasks.hosts import runs
from tests.parts import hostile_values as values
from tests.parts.hostile_server import HOME, Frames, HostileServer, message, pieces
from tests.parts.hostile_values import TEXTS, anything, crafted, spoilt, spoilt_bytes

_RECORDS = [protocol.HELLO, protocol.ANSWER, protocol.UPDATE]
_MOST_BYTES = 1 << 21  # of a crafted file
ATTACH, START, CLEAN, FACTS = "attach", "start", "clean", "facts"
ENDS = ["eof", "dead", "silent"]


@dataclass
class Surroundings:
    """What an attacker may know of the client: a directory and a process that it would like to have removed."""

    batch: str
    guard: str
    process: dict[str, Any]


@dataclass
class Case:
    server: HostileServer
    flow: str = ATTACH
    name: str = ""  # what the person asks for, where it is not the batch


Kind = Callable[[Random, Surroundings], Case]


def odd_greetings(rng: Random, near: Surroundings) -> Case:
    """What stands before and in the first message."""
    server = HostileServer(near.batch, end=rng.choice(ENDS))
    honest = server.says["hello"]
    whole = message(protocol.HELLO, 0, honest)
    server.says["hello"] = values.one_of(
        rng,
        lambda: spoilt(rng, honest),
        lambda: honest | crafted(rng, Hello, near.guard + "/../"),
        lambda: protocol.MAGIC + b"!" + rng.choice(TEXTS).encode(errors="surrogatepass"),
        lambda: spoilt_bytes(rng, protocol.MAGIC + whole),
        lambda: protocol.MAGIC + protocol.frame(DATA, b"x", 1) + whole,
        lambda: protocol.MAGIC + protocol.frame(protocol.HELLO, rng.choice(values.BROKEN_JSON)),
        lambda: rng.randbytes(rng.randrange(1 << 17)),
    )
    return Case(server, rng.choice([ATTACH, START, CLEAN]))


def spoilt_messages(rng: Random, near: Surroundings) -> Case:
    """A frame with bytes changed, cut or made up, or a message with a value that is of another type, missing, or far
    too large."""
    server, at = HostileServer(near.batch, files=dict(FILES)), rng.randrange(1, 9)
    made_up = [
        lambda: bytes([rng.randrange(256)]) + rng.randbytes(16),
        lambda: rng.choice([b"A", b"U", b"D", b"Z", b"F", b"B"]) + b"\xff" * 16,
        lambda: protocol.frame(rng.choice(_RECORDS), rng.choice(values.BROKEN_JSON), rng.randrange(4)),
        lambda: rng.randbytes(rng.randrange(1, 5000)),
        lambda: rng.choice([b"Last login: yesterday\r\n", protocol.MAGIC, b"B" + bytes(15) + b"\1x"]),
    ]

    def change(number: int, frame: bytes) -> Iterator[bytes]:
        if number != at:
            yield frame
        elif frame[:1] in _RECORDS and rng.random() < 0.5:
            ((kind, request, _, payload),) = protocol.FrameReader().feed(frame)
            text = values.broken_json(rng, json.loads(payload))
            yield protocol.frame(kind, text[: protocol.MAX_BYTES[kind]], request)
        else:
            yield spoilt_bytes(rng, frame) if rng.random() < 0.5 else values.one_of(rng, *made_up) + frame

    server.change, server.end, server.end_after = change, rng.choice(ENDS), 3 + at
    return Case(server, rng.choice([ATTACH, ATTACH, START, CLEAN]))


def crafted_statuses(rng: Random, near: Surroundings) -> Case:
    """Right types, wrong values: times, counts, processes of this machine, an end that is none."""
    server = HostileServer(near.batch)
    first, last = server.says["statuses"]

    def lie(status: dict[str, Any]) -> dict[str, Any]:
        kept = status if rng.random() < 0.2 else {key: status.get(key) for key in ("state", "phase", "end")}
        return status | crafted(rng, Status, near.guard) | kept | (near.process if rng.random() < 0.4 else {})

    server.says["statuses"] = [lie(first) for _ in range(rng.choice([0, 1, 5]))] + [lie(last)]
    server.end, server.end_after = rng.choice(["eof", "silent"]), 4
    return Case(server, rng.choice([ATTACH, START]))


def crafted_directories(rng: Random, near: Surroundings) -> Case:
    """Where a host says that its runs are: the client makes a directory of that name."""
    names = [*TEXTS, "01", near.batch, "runs", "kept-batch", "history.db", ".", "x" * 255]
    numbers = ["0x1", "１", "-1", "1e3", "99999999999", "0" * 300]
    directory = values.one_of(
        rng,
        lambda: f"{HOME}/runs/{rng.choice(names)}/{rng.choice(names)}",
        lambda: f"{near.guard}/{rng.choice(['01', '../01', '..'])}",
        lambda: rng.choice([*TEXTS, f"{HOME}/runs/kept-batch/01", f"{HOME}/runs/../../x/01"]),
        lambda: f"{HOME}/runs/{near.batch}/{rng.choice(numbers)}",
    )
    batch = [directory, *directory.split("/")][-2]
    entry = {"state": "ended"} | crafted(rng, RunSummary) | {"dir": directory}
    server = HostileServer(near.batch)
    server.says["runs"] = [entry] * (rng.choice([1, 1, 2, 2000]) if len(directory) < 1000 else 1)
    return Case(server, rng.choice([ATTACH, ATTACH, CLEAN]), name=batch or directory)


def crafted_descriptions(rng: Random, near: Surroundings) -> Case:
    """What a job may have written into its plan.json, also what is none of a description."""
    server = HostileServer(near.batch)
    others = ("workspace", "setup", "owned", "script", "secrets", "host_env", "container")
    made = {key: rng.choice([near.guard, [near.guard], {"PATH": near.guard}]) for key in others}
    made |= server.says["description"] | crafted(rng, RunDescription, near.guard)
    server.says["description"] = spoilt(rng, made) if rng.random() < 0.3 else made
    return Case(server)


def crafted_logs(rng: Random, near: Surroundings) -> Case:
    """Offsets that are huge, go back, overlap, leave holes, or belong to nobody; lines of every kind."""
    text = values.one_of(
        rng,
        lambda: rng.randbytes(rng.choice([0, 1, 1000, 300_000])),
        lambda: b"\r" * 100_000,
        lambda: b"\x1b[2J\x1b]0;title\x07" * 1000,
        lambda: b"x" * 500_000,
        lambda: b"\n" * 200_000,
        lambda: "".join(f"{text}\n" for text in TEXTS).encode(errors="surrogatepass"),
        lambda: b"Traceback (most recent call last):\n" * 3000,
        lambda: b"FAILED tests/test_x.py::test_y - assert 1\n" * 2000,
        lambda: b"step 0: " + b"{" * 20_000 + b"\n",
        lambda: b"step 1: {'loss': " + b"9" * 50_000 + b"}\n",
    )
    server = HostileServer(near.batch, log=text)

    def log_pieces(number: int) -> Frames:
        for _ in range(rng.choice([1, 5, 40])):
            offset = rng.choice([0, 1, len(text), rng.randrange(len(text) + 1), 2**63, 2**64 - 1, 1 << 40])
            chunk = text[offset : offset + rng.choice([0, 1, 5000, 1 << 18])] or b"x"
            yield protocol.frame(DATA, chunk, rng.choice([number, number, number, 0, 2**32 - 1]), offset)
        for count, chunk in enumerate(pieces(text)):
            yield protocol.frame(DATA, chunk, number, count << 18)

    server.log_frames = log_pieces
    if rng.random() < 0.3:
        server.says["statuses"][-1]["log_sha256"] = rng.choice([*TEXTS, None])
    server.says["statuses"][-1]["exit_code"] = rng.choice([0, 1])
    return Case(server, rng.choice([ATTACH, START]))


JUNIT = b'<testsuite tests="1"><testcase name="t"><failure message="assert 1 == 2">x</failure></testcase></testsuite>'
FILES = {
    "docker.json": b'{"calls": [{"ci": ["run", "img"], "here": ["run", "img"], "name": "x", "runtime": "docker"}]}',
    "environment.json": b'{"driver": "550", "gpus": [{"index": 0, "uuid": "GPU-1", "name": "H200", "memory": "1"}]}',
    "events.jsonl": b'{"t": 1000.0, "event": "started"}\n{"t": 1002.0, "event": "gpus", "ids": [0, 1]}\n',
    "agent.log": b"nothing\n",
    "artifacts/junit.xml": JUNIT,
    "artifacts/left-out.json": b'{"files": [{"place": "host", "path": "/x", "bytes": 1, "why": "y"}]}',
    "artifacts/outputs/step": b"a=b\nc<<E\nd\nE\n",
}
RECORDS = {
    "docker.json": DockerInvocations,
    "environment.json": Environment,
    "events.jsonl": Event,
    "artifacts/left-out.json": LeftOut,
}
XMLS = [
    b"<a>" * 100_000,
    b"<a>" + b"<testcase name='x'><failure message='y'/></testcase>" * 5000 + b"</a>",
    b"<!DOCTYPE x [<!ENTITY a 'aaaa'>]>" + JUNIT,
    b"<testcase " + b"".join(b"a%d='1' " % n for n in range(5000)) + b"/>",
    JUNIT.decode().encode("utf-16"),
]


def crafted_files(rng: Random, near: Surroundings) -> Case:
    """Files with the names that a run has, and contents that none has."""
    server = HostileServer(near.batch, log=b"Traceback (most recent call last):\nValueError: x\n", files=dict(FILES))
    for name in rng.sample(sorted(FILES), rng.choice([1, 2, len(FILES)])):
        if name in RECORDS and rng.random() < 0.7:
            made = [values.broken_json(rng, crafted(rng, RECORDS[name]))]
        else:
            made = [spoilt_bytes(rng, FILES[name])]
        server.files[name] = b"\n".join(made * (rng.choice([1, 50]) if name.endswith("l") else 1))
    if rng.random() < 0.3:
        server.files["artifacts/junit.xml"] = rng.choice(XMLS)
    server.files = {name: content[:_MOST_BYTES] for name, content in server.files.items()}
    server.says["statuses"][-1]["exit_code"] = rng.choice([0, 1, 125, 137])
    return Case(server)


def crafted_answers(rng: Random, near: Surroundings) -> Case:
    """Errors, results of another request, two answers, another's number, none at all."""
    server = HostileServer(near.batch)
    codes = ["missing-base", "elsewhere", "gone", "busy", "missing", "store", "failed", "start", *TEXTS]

    def other(number: int, *_: Request) -> Frames:
        yield message(protocol.ANSWER, number, rng.choice([spoilt(rng, crafted(rng, Answer)), anything(rng)]))

    ways: list[Callable[[int, Request], Frames]] = [
        lambda number, _: server.answer(number, code=rng.choice(codes), error=rng.choice(TEXTS)),
        other,
        lambda number, _: chain(server.answer(number), other(number)),
        lambda number, _: server.answer(rng.choice([0, number + 1, 2**32 - 1])),
        lambda number, _: chain([message(protocol.UPDATE, number, {"over": True})], server.answer(number)),
    ]
    verbs = ["receive", "create", "follow", "collect", "clear", "runs", "describe", "prune", "cancel"]
    for verb in rng.sample(verbs, rng.choice([1, 1, 2, 5])):
        server.answers[verb] = rng.choice([ways[0], *ways])
    server.end, server.end_after = rng.choice(ENDS), rng.choice([3, 6])
    return Case(server, rng.choice([ATTACH, START, START, CLEAN]))


_CHUNK = b" " * (1 << 18)
# Verbs, and what is sent without an end as an answer: more of it than the client may take.
STREAMS: list[tuple[str, Callable[[int], Frames]]] = [
    ("collect", lambda number: chain([_file(b"x", number)], repeat(_data(number), (protocol.MAX_TOTAL >> 18) + 8))),
    ("collect", lambda number: (_file(b"%d" % count, number) for count in range(1 << 16))),
    ("follow", lambda number: repeat(message(protocol.UPDATE, number, {"status": {"state": "running"}}), 1 << 12)),
    ("follow runs", lambda _: repeat(protocol.frame(protocol.HEARTBEAT) * 1000, 128)),
    ("follow runs", lambda _: chain(repeat(_data(77), 32), repeat(_file(b"x", 12345), 1 << 15))),
    ("follow runs", lambda _: repeat(protocol.packed(bytes(1 << 24), 77, 0), 4)),
    ("follow runs", lambda _: chain([b"A" + bytes(12) + protocol.MAX_BYTES[b"A"].to_bytes(4, "big")], [_CHUNK] * 63)),
]


def _data(number: int, offset: int = 0) -> bytes:
    return protocol.frame(DATA, _CHUNK, number, offset)


def _file(name: bytes, number: int) -> bytes:
    return protocol.frame(protocol.FILE, b"artifacts/" + name, number)


def endless_streams(rng: Random, near: Surroundings) -> Case:
    """What never ends by itself; it ends after far more than the client may take."""
    server, what = HostileServer(near.batch, end=rng.choice(ENDS)), rng.choice(["greeting", "log", "answer"])
    if what == "greeting":
        server.says["hello"] = rng.choice([b"Welcome! ", b"\n", protocol.MAGIC[:-1]]) * (1 << 20)
    elif what == "log":
        offsets = range(0, runs.MAX_LOG_BYTES + (1 << 20), len(_CHUNK))
        server.log_frames = lambda number: (_data(number, offset) for offset in offsets)
    else:
        verbs, stream = rng.choice(STREAMS)
        verb = rng.choice(verbs.split())
        server.answers[verb] = lambda number, _: stream(number)
        server.end_after = {"follow": 3, "runs": 1}.get(verb, 99)
    return Case(server)


_LOCKED = {"files": [{"gpu": 0, "file": [0, 1, 5]}], "protected": "0", "user": 0}
OUTPUTS = [
    "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n",
    "3.10.14 /usr/bin/python3.10\n3.11.2 /usr/bin/python3\n",
    "gpu:h100:8(S:0-1),gpu:a100:2\n",
    json.dumps({**_LOCKED, "locks": "1: FLOCK ADVISORY WRITE 7 00:01:5 0 EOF\n"}),
    json.dumps([{"Id": "sha256:1", "Size": 123, "RepoDigests": ["a@sha256:1"]}]),
    *("", "9" * 5000, "[" * 100_000, ", , ,\n" * 100),
]


def crafted_program_output(rng: Random, near: Surroundings) -> Case:
    """What nvidia-smi, docker and the others of a host print, when somebody else wrote them."""

    def program() -> QueryAnswer:
        out = rng.choice(OUTPUTS)
        if out[:2] in ('{"', "[{"):
            out = values.broken_json(rng, json.loads(out)).decode("utf-8", "replace")
        elif rng.random() < 0.6:
            out = spoilt_bytes(rng, out.encode()).decode("utf-8", "replace")
        return QueryAnswer(rng.choice([0, 0, 0, 0, 1, 127, None, -9]), out[:_MOST_BYTES], rng.choice(TEXTS))

    return Case(HostileServer(near.batch, program=program), FACTS)


KINDS: dict[str, Kind] = {
    "greetings": odd_greetings,
    "messages": spoilt_messages,
    "statuses": crafted_statuses,
    "directories": crafted_directories,
    "descriptions": crafted_descriptions,
    "logs": crafted_logs,
    "files": crafted_files,
    "answers": crafted_answers,
    "endless streams": endless_streams,
    "program output": crafted_program_output,
}
