"""The kinds of lies: each makes a server from a seed, and says what a client does with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.serving import protocol
from ci_tasks.agent.serving.protocol import DATA, Request
from ci_tasks.hosts import runs
from tests.parts import hostile_values as values
from tests.parts.hostile_server import HOME, Frames, HostileServer, message, pieces
from tests.parts.hostile_values import FLOATS, INTEGERS, NUMBERS, TEXTS, anything, spoilt, spoilt_bytes

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
    honest = {"home": HOME, "python": ["/usr/bin/python3", "3.11.2"]}
    whole = message(protocol.HELLO, 0, honest)
    hello: Any = values.one_of(
        rng,
        lambda: spoilt(rng, honest),
        lambda: {**honest, "home": rng.choice([*TEXTS, near.guard + "/../"])},
        lambda: {**honest, "python": [rng.choice(TEXTS), rng.choice(TEXTS)]},
        lambda: protocol.MAGIC + b"!" + rng.choice(TEXTS).encode(errors="surrogatepass"),
        lambda: spoilt_bytes(rng, protocol.MAGIC + whole),
        lambda: protocol.MAGIC + protocol.frame(DATA, b"x", 1) + whole,
        lambda: protocol.MAGIC + protocol.frame(protocol.HELLO, rng.choice(values.BROKEN_JSON)),
        lambda: rng.randbytes(rng.randrange(1 << 17)),
    )
    server = HostileServer(near.batch, hello=hello, end=rng.choice(ENDS))
    return Case(server, rng.choice([ATTACH, START, CLEAN]))


def spoilt_messages(rng: Random, near: Surroundings) -> Case:
    """A frame with bytes changed, cut or made up, or a message with a value that is of another type, missing, or far
    too large."""
    server, at = HostileServer(near.batch, files=_artifacts()), rng.randrange(1, 9)
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
    """Right types, wrong values: times, counts, processes of this machine."""
    server = HostileServer(near.batch)
    first, last = server.honest_statuses()
    numbers = ["started_at", "ended_at", "heartbeat_at", "queue_seconds", "log_bytes", "sequence", "pid", "group"]
    texts = ["error", "log_error", "log_sha256", "pid_start", "boot_id"]

    def crafted(status: dict[str, Any]) -> dict[str, Any]:
        made = dict(status)
        for _ in range(rng.choice([1, 2, 5])):
            made[rng.choice(numbers)] = rng.choice([*INTEGERS, *(NUMBERS if rng.random() < 0.1 else [None])])
            made[rng.choice(texts)] = rng.choice([*TEXTS, None])
        if rng.random() < 0.3:
            made |= {name: [rng.choice(TEXTS)] * 4 for name in ("gpu_uuids", "waiting", "left")}
            made["gpu_ids"] = [rng.choice(INTEGERS)] * rng.choice([1, 8, 10_000])
            made["kept"] = {"containers": [rng.choice(TEXTS)], "workspace": near.guard}
            made["slurm"] = {"job": rng.choice(TEXTS), "node": rng.choice(TEXTS), "restarts": rng.choice(INTEGERS)}
        if rng.random() < 0.4:
            made |= near.process
        if rng.random() < 0.3:
            made |= {"end": rng.choice(["exit", "timeout", "cancelled", "error"]), "exit_code": rng.choice(INTEGERS)}
        return made

    server.statuses = [crafted(first) for _ in range(rng.choice([0, 1, 5]))] + [crafted(last)]
    if rng.random() < 0.2:
        server.statuses.append(crafted(first))  # an end that is none
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
    entry = {"dir": directory, "state": "ended"}
    server = HostileServer(near.batch)
    server.summaries = [entry] * (rng.choice([1, 1, 2, 2000]) if len(directory) < 1000 else 1)
    return Case(server, rng.choice([ATTACH, ATTACH, CLEAN]), name=batch or directory)


def crafted_descriptions(rng: Random, near: Surroundings) -> Case:
    """What a job may have written into its plan.json."""
    text = partial(rng.choice, TEXTS)
    described: dict[str, Any] = {name: text() for name in ["id", "label", "row", "host", "test", "args", "image"]}
    described |= {"gpus": rng.choice(INTEGERS), "timeout_minutes": rng.choice(FLOATS)}
    described["deviations"] = [dict.fromkeys(("what", "ci", "here", "why"), text())] * rng.choice([0, 1, 20])
    described["checkout"] = {"path": near.guard, "commit": text(), "dirty": [text()] * 3}
    # None of these is one of a description.
    described |= dict.fromkeys(("workspace", "setup"), near.guard)
    described |= {"owned": [near.guard], "script": f"rm -rf {near.guard}", "secrets": ["HOME", "PATH"]}
    described["host_env"] = {"PATH": near.guard, "LD_PRELOAD": near.guard}
    described["container"] = {"runtime": "docker", "name": "guard", "labels": {"ci-tasks.dir": near.guard}}
    described = {key: value for key, value in described.items() if rng.random() < 0.8}
    return Case(HostileServer(near.batch, description=spoilt(rng, described) if rng.random() < 0.3 else described))


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
    server.statuses = server.honest_statuses()
    if rng.random() < 0.3:
        server.statuses[-1]["log_sha256"] = rng.choice([*TEXTS, None])
    server.statuses[-1]["exit_code"] = rng.choice([0, 1])
    return Case(server, rng.choice([ATTACH, START]))


def crafted_files(rng: Random, near: Surroundings) -> Case:
    """Files with the names that a run has, and contents that none has."""
    server = HostileServer(near.batch, log=b"Traceback (most recent call last):\nValueError: x\n", files=_artifacts())
    for name in rng.sample(sorted(server.files), rng.choice([1, 2, len(server.files)])):
        honest = server.files[name]
        if name.endswith(".json"):
            server.files[name] = values.broken_json(rng, json.loads(honest))
        elif name.endswith(".jsonl"):
            lines = [values.broken_json(rng, json.loads(line)) for line in honest.splitlines()]
            server.files[name] = b"\n".join(lines * rng.choice([1, 50]))
        elif name.endswith(".xml"):
            server.files[name] = values.one_of(
                rng,
                partial(spoilt_bytes, rng, honest),
                lambda: b"<a>" * 100_000,
                lambda: b"<a>" + b"<testcase name='x'><failure message='y'/></testcase>" * 5000 + b"</a>",
                partial(bytes.__add__, b"<!DOCTYPE x [<!ENTITY a 'aaaa'>]>", honest),
                lambda: b"<testcase " + b"".join(b"a%d='1' " % n for n in range(5000)) + b"/>",
                partial(honest.decode().encode, "utf-16"),
            )
        else:
            server.files[name] = spoilt_bytes(rng, honest)
    server.files = {name: content[:_MOST_BYTES] for name, content in server.files.items()}
    server.statuses = server.honest_statuses()
    server.statuses[-1]["exit_code"] = rng.choice([0, 1, 125, 137])
    return Case(server)


def crafted_answers(rng: Random, near: Surroundings) -> Case:
    """Errors, results of another request, two answers, another's number, none at all."""
    server = HostileServer(near.batch)
    codes = ["missing-base", "elsewhere", "gone", "busy", "missing", "store", "failed", "start", *TEXTS]
    names = ["left", "description", "outputs", "runs", "lines"]

    def error(number: int, request: Request) -> Frames:
        return server.answer(number, code=rng.choice(codes), error=rng.choice(TEXTS))

    def other(number: int, request: Request) -> Frames:
        yield message(protocol.ANSWER, number, rng.choice([{rng.choice(names): anything(rng)}, anything(rng)]))

    def twice(number: int, request: Request) -> Frames:
        yield from server.answer(number)
        yield from other(number, request)

    def misnumbered(number: int, request: Request) -> Frames:
        return server.answer(rng.choice([0, number + 1, 2**32 - 1]))

    def mistaken(number: int, request: Request) -> Frames:
        yield message(protocol.UPDATE, number, {"over": True})
        yield from server.answer(number)

    verbs = ["receive", "create", "follow", "collect", "clear", "runs", "describe", "prune", "cancel"]
    for verb in rng.sample(verbs, rng.choice([1, 1, 2, 5])):
        server.answers[verb] = rng.choice([error, error, other, twice, misnumbered, mistaken])
    server.end, server.end_after = rng.choice(ENDS), rng.choice([3, 6])
    return Case(server, rng.choice([ATTACH, START, START, CLEAN]))


def endless_streams(rng: Random, near: Surroundings) -> Case:
    """What never ends by itself; it ends after far more than the client may take."""
    server = HostileServer(near.batch, end=rng.choice(ENDS))
    chunk = b"x" * (1 << 18)

    def repeated(piece: bytes, total: int) -> Frames:
        return iter([piece] * (total // len(piece)))

    def logs(number: int) -> Frames:
        offsets = range(0, runs.MAX_LOG_BYTES + (1 << 20), len(chunk))
        return (protocol.frame(DATA, chunk, number, offset) for offset in offsets)

    def file(number: int, request: Request) -> Frames:
        yield protocol.frame(protocol.FILE, b"artifacts/x", number)
        yield from repeated(protocol.frame(DATA, chunk, number), protocol.MAX_TOTAL + (1 << 21))

    def files(number: int, request: Request) -> Frames:
        return (protocol.frame(protocol.FILE, b"artifacts/%d" % count, number) for count in range(1 << 16))

    def updates(number: int, request: Request) -> Frames:
        yield from repeated(next(server.update(number, server.honest_statuses()[0])), 1 << 18)

    def beats(number: int, request: Request) -> Frames:
        return repeated(protocol.frame(protocol.HEARTBEAT) * 1000, 1 << 21)

    def strangers(number: int, request: Request) -> Frames:
        yield from repeated(protocol.frame(DATA, chunk, 77), 1 << 23)
        yield from repeated(protocol.packed(b"x" * (1 << 24), 77, 0), 1 << 16)
        yield from repeated(protocol.frame(protocol.FILE, b"artifacts/x", 12345), 1 << 20)

    def one_frame(number: int, request: Request) -> Frames:
        yield b"A" + bytes(12) + (protocol.MAX_BYTES[b"A"]).to_bytes(4, "big")
        yield from [b" " * (1 << 18)] * 63

    streams: list[tuple[str, Callable[[int, Request], Frames]]] = [("collect", file), ("collect", files)]
    streams += [("follow", updates)]
    streams += [(verb, stream) for verb in ("follow", "runs") for stream in (beats, strangers, one_frame)]
    what = rng.choice(["greeting", "log", "answer"])
    if what == "greeting":
        server.hello = rng.choice([b"Welcome! ", b"\n", protocol.MAGIC[:-1]]) * (1 << 20)
    elif what == "log":
        server.log_frames = logs
    else:
        verb, stream = rng.choice(streams)
        server.answers[verb] = stream
        server.end_after = {"follow": 3, "runs": 1}.get(verb, 99)
    return Case(server)


OUTPUTS = [
    "",
    "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n",
    "3.10.14 /usr/bin/python3.10\n3.11.2 /usr/bin/python3\n",
    "gpu:h100:8(S:0-1),gpu:a100:2\n",
    json.dumps(
        {
            "files": [{"gpu": 0, "file": [0, 1, 5]}],
            "locks": "1: FLOCK ADVISORY WRITE 7 00:01:5 0 EOF\n",
            "protected": "0",
            "user": 0,
        }
    ),
    json.dumps([{"Id": "sha256:1", "Size": 123, "RepoDigests": ["a@sha256:1"]}]),
]


def crafted_program_output(rng: Random, near: Surroundings) -> Case:
    """What nvidia-smi, docker and the others of a host print, when somebody else wrote them."""

    def program() -> QueryAnswer:
        out = rng.choice([*OUTPUTS, "9" * 5000, "[" * 100_000, ", , ,\n" * 100])
        if out[:2] in ('{"', "[{"):
            out = values.broken_json(rng, json.loads(out)).decode("utf-8", "replace")
        elif rng.random() < 0.6:
            out = spoilt_bytes(rng, out.encode()).decode("utf-8", "replace")
        return QueryAnswer(rng.choice([0, 0, 0, 0, 1, 127, None, -9]), out[:_MOST_BYTES], rng.choice(TEXTS))

    return Case(HostileServer(near.batch, program=program), FACTS)


def _artifacts() -> dict[str, bytes]:
    invocation = {"ci": ["run", "img"], "here": ["run", "img"], "name": "x", "runtime": "docker"}
    deviation = {"what": "pull", "ci": "a", "here": "b", "why": "c"}
    environment = {
        "driver": "550",
        "gpus": [{"index": 0, "uuid": "GPU-1", "name": "H200", "memory": "1"}],
        "containers": [{"name": "x", "digests": ["a@b"], "packages": {"torch": "2"}}],
        "packages": {"a": "1"},
    }
    events = [
        {"t": 1000.0, "event": "started"},
        {"t": 1001.5, "event": "waiting", "reasons": ["gpu"]},
        {"t": 1002.0, "event": "gpus", "ids": [0, 1]},
        {"t": 1060.0, "event": "ended", "exit_code": 0},
    ]
    left_out = {"files": [{"place": "host", "path": "/x", "bytes": 1, "why": "y"}]}
    case = '<testcase name="t"><failure message="assert 1 == 2">x</failure></testcase>'
    return {
        "docker.json": json.dumps({"calls": [{**invocation, "deviations": [deviation]}]}).encode(),
        "environment.json": json.dumps(environment).encode(),
        "events.jsonl": b"".join(json.dumps(event).encode() + b"\n" for event in events),
        "agent.log": b"nothing\n",
        "artifacts/junit.xml": f'<testsuites><testsuite tests="1">{case}</testsuite></testsuites>'.encode(),
        "artifacts/left-out.json": json.dumps(left_out).encode(),
        "artifacts/outputs/step": b"a=b\nc<<E\nd\nE\n",
    }


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
