"""What a client and a host say to each other: frames, the records in them, and the files of a run on their way to the
client.

A frame is a kind, the number of the request that it belongs to, an offset and a payload. A host's output begins with
MAGIC; whatever stands before it, such as the greeting of a login script, is skipped. Files are frames, too: all that an
archive can hold beside plain files (links, devices, holes, extended headers) is what a host may not send. `pack` leaves
out what a client would refuse, and says so in a file of its own.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import field
from typing import Iterator, Literal, Mapping, Optional, Sequence, Tuple

from .codec import to_line
from .files import UnsafeName, check_absolute_path, check_line, check_relative_path, open_file
from .quick_dataclass import dataclass
from .records import CheckoutPart, Plan, QueryAnswer, RunDescription, State, Status
from .run_directory import SMALL_FILES

MAGIC = b"\0ci-tasks 2\n"
REQUEST, HELLO, ANSWER, UPDATE = b"Q", b"H", b"A", b"U"  # a Request, Hello, Answer, RunUpdate
DATA = b"D"  # to the host bytes of a pack, empty at its end; to the client bytes of a log, or of the last FILE
PACKED = b"Z"  # the same bytes, packed by zlib
FILE = b"F"  # the path of a file, whose bytes follow
HEARTBEAT = b"B"  # empty
# To the host, with random bytes: the client leaves, and another one may use the same server. The host repeats it as the
# last frame for this client.
GOODBYE = b"E"

# The longest payload of each kind. That of a record is for paths of a checkout with many changes.
MAX_BYTES = {**dict.fromkeys((REQUEST, HELLO, ANSWER, UPDATE), 1 << 24), **dict.fromkeys((DATA, PACKED), 1 << 20)}
MAX_BYTES.update({FILE: 1 << 12, HEARTBEAT: 0, GOODBYE: 16})
MAX_UNPACKED = 1 << 17
_HEAD = struct.Struct(">cIQI")
_FASTEST = 1  # zlib's level; it packs 170 MB of a real log in a second, to a ninth
CHUNK = 1 << 18
NOT_SENT = "artifacts/not-sent.txt"
MAX_FILES = 25000  # of a run
MAX_TOTAL = 4 << 30  # bytes of them
_RESERVED = 1 << 26  # bytes for NOT_SENT
_MAX_NAMED = 1000  # lines of it

Frame = Tuple[bytes, int, int, bytes]  # kind, number, offset, payload


class FrameError(ValueError):
    """Bytes that are no frame: another program answers, or something wrote in between."""


def frame(kind: bytes, payload: bytes = b"", number: int = 0, offset: int = 0) -> bytes:
    return _HEAD.pack(kind, number, offset, len(payload)) + payload


def message(kind: bytes, number: int, record: object) -> bytes:
    return frame(kind, to_line(record).encode("ascii"), number)


def packed(chunk: bytes, number: int, offset: int) -> bytes:
    return frame(PACKED, zlib.compress(chunk, _FASTEST), number, offset)


class FrameReader:
    """Decodes frames from chunks of any size."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Each frame that is complete. Raises FrameError."""
        self._held += chunk
        while len(self._held) >= _HEAD.size:
            kind, number, offset, length = _HEAD.unpack_from(self._held)
            if kind not in MAX_BYTES:
                raise FrameError("not a frame: %r" % bytes(self._held[:40]))
            if length > MAX_BYTES[kind]:
                raise FrameError("a frame of kind %s with %d bytes" % (kind.decode(), length))
            end = _HEAD.size + length
            if len(self._held) < end:
                break
            with memoryview(self._held) as held:  # to copy it once: these may be all bytes of a large log
                payload = bytes(held[_HEAD.size : end])
            del self._held[:end]
            yield kind, number, offset, payload


# -- records -----------------------------------------------------------------------------------------------------------

Verb = Literal[
    "receive", "create", "follow", "cancel", "collect", "clear", "look", "describe", "programs", "runs", "prune"
]


@dataclass(frozen=True)
class Request:
    """What a client asks for; each may be repeated. `dir` is the directory of the run that it is about.

    create    make the run directory, and its checkout from `parts` if there are any; with `start` start the run, too,
              or with `sbatch_script` queue it for Slurm. `secrets` go into its agent's environment and nowhere else
    follow    send its log from `offset` on and its statuses, to the last
    cancel    end it after its grace period, or at once with `kill`; also what an agent that died has left. One that has
              not started never does
    collect   send its small files and artifacts; `secrets` are needed if its agent died before it could mask them
    clear     remove it and all that belongs to it; with `shared`, after the last run of a batch, the venvs of its rows
    look      let its agent look at its processes, and send what was seen; `look` is new with each
    describe  describe a run of another client
    receive   store a pack of objects, whose bytes follow
    programs  run `commands`, name → argv, at once, for at most `seconds`, in the environment of jobs with `env`
    runs      list them
    prune     remove objects, agents and environments that were not used for `days` days; with `all_environments` every
              environment that is not in use
    """

    do: Verb
    dir: str = ""
    plan: Plan = Plan()
    script: str = ""
    parts: Tuple[CheckoutPart, ...] = ()
    start: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    sbatch_script: str = ""
    offset: int = 0
    kill: bool = False
    shared: bool = True
    look: str = ""
    commands: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    days: float = 0.0
    all_environments: bool = False


@dataclass(frozen=True)
class RunSummary:
    """A run that a host keeps; `planned` until it starts. What it is called follows from its directory alone."""

    dir: str
    state: State = "planned"
    alive: bool = False
    kept: bool = False
    started_at: Optional[float] = None
    ended_at: Optional[float] = None

    def __post_init__(self) -> None:
        check_absolute_path(self.dir)

    @property
    def batch_dir(self) -> str:
        above = os.path.dirname(self.dir)
        return os.path.dirname(above) if os.path.basename(above) == "environments" else above

    @property
    def batch(self) -> str:
        return os.path.basename(self.batch_dir)

    @property
    def number(self) -> str:
        return os.path.basename(self.dir)

    @property
    def is_row(self) -> bool:
        """Whether it is a row, not install steps."""
        return self.number.isascii() and self.number.isdecimal() and self.batch not in ("", "runs")

    @property
    def id(self) -> str:
        return "%s%s%s" % (self.batch, "." if self.is_row else "/environments/", self.number)


@dataclass(frozen=True)
class Answer:
    """The end of a request. If that failed, `error` says why to a person, `code` to the client's code, and `traceback`
    to the client's log.

    Else it has what was asked for: the `description`, the `outputs` of programs, the `runs`. `lines` say what prune has
    done, and `left` has a line for each thing that clear or prune could not remove."""

    error: str = ""
    code: str = ""
    traceback: str = ""
    description: RunDescription = RunDescription()
    outputs: Mapping[str, QueryAnswer] = field(default_factory=dict)
    runs: Tuple[RunSummary, ...] = ()
    lines: Tuple[str, ...] = ()
    left: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Hello:
    """The first words of a host. `home` is the directory that holds everything of ours on it, `python` the path and
    version of its Python. `agent` is the SHA-256 of the agent with byte code that it keeps: a client that names it the
    next time need not send the agent, and nothing is compiled."""

    home: str
    python: Tuple[str, str]
    agent: str = ""

    def __post_init__(self) -> None:
        check_absolute_path(self.home)
        check_absolute_path(self.python[0])
        check_line(self.python[1], 100)


@dataclass(frozen=True)
class RunUpdate:
    """A new status of a run that the client follows. `over`: it is the last one. `problem` says why the run cannot be
    followed, with the `code` of a refusal."""

    status: Optional[Status] = None
    over: bool = False
    code: str = ""
    problem: str = ""


# -- the files of a run ------------------------------------------------------------------------------------------------


def check_file_name(path: str) -> None:
    """Raises UnsafeName, unless it names a file that is fetched from a run."""
    check_relative_path(path)
    if path not in SMALL_FILES and not path.startswith("artifacts/"):
        raise UnsafeName("no file of a run")


def pack(
    run_dir: str, names: Optional[Sequence[str]] = None, left_out: Sequence[str] = ()
) -> Iterator[Tuple[bytes, bytes]]:
    """The files of a run, on its host, as kinds and payloads of frames (default: all that a client keeps), with a line
    in NOT_SENT for each that is `left_out`. A file that is removed meanwhile is none of them."""
    lines, files, total = [*left_out], 0, 0
    for path in _paths(run_dir) if names is None else names:
        try:
            source = open_file(os.path.join(run_dir, path), follow_link=False)
        except OSError:
            continue
        with source:
            size = os.fstat(source.fileno()).st_size
            try:
                check_file_name(path)
                if files >= MAX_FILES - 1 or total + size > MAX_TOTAL - _RESERVED:
                    raise UnsafeName("over the limit of %d files or %d GiB" % (MAX_FILES, MAX_TOTAL >> 30))
            except UnsafeName as reason:
                lines.append("%.1000s: %s" % (ascii(path), reason))
                continue
            files, total = files + 1, total + size
            yield FILE, path.encode()
            while size > 0 and (chunk := source.read(min(size, CHUNK))):
                size -= len(chunk)
                yield DATA, chunk
    if lines:
        yield FILE, NOT_SENT.encode()
        yield from ((DATA, (line + "\n").encode("utf-8", "backslashreplace")) for line in lines[:_MAX_NAMED])


def _paths(run_dir: str) -> Iterator[str]:
    yield from SMALL_FILES
    for directory, _, names in os.walk(os.path.join(run_dir, "artifacts")):
        yield from (os.path.relpath(os.path.join(directory, name), run_dir) for name in sorted(names))
