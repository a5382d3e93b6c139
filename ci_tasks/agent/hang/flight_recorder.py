"""torch's flight recorder: asking for a dump, and reading it. The pickle is the job's own: no name in it is looked up.

Only opcodes that build plain data are there, and the reader in Python, since the one in C reserves memory for any index
that a pickle names.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import stat
import time
from contextlib import suppress
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Tuple

from ..files import content_of
from .facts import RecordedCollective

MAX_BYTES = 4 << 20
_MAX_MEMBERS = 1 << 16  # characters of a list of ranks
_MESSAGE = re.compile(r"(send|recv) \d{1,7}(?:->|<-)(\d{1,7})$")
_DATA = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1"),
    *("BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
    *("TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
)
_CODES = {opcode.name: opcode.code.encode("latin-1")[0] for opcode in pickletools.opcodes}


class UnsafePickle(ValueError):
    """It asks for more than plain data."""


class _PlainData(pickle._Unpickler):
    dispatch: ClassVar[Dict[int, Any]] = {_CODES[name]: pickle._Unpickler.dispatch[_CODES[name]] for name in _DATA}

    def find_class(self, module: str, name: str) -> Any:
        raise UnsafePickle("it names %.100s" % module)


def read_pickle(content: bytes) -> Any:
    """The data in a pickle. Raises UnsafePickle."""
    if len(content) > MAX_BYTES:
        raise UnsafePickle("more than %d MiB" % (MAX_BYTES >> 20))
    try:
        return _PlainData(io.BytesIO(content)).load()
    except UnsafePickle:
        raise
    except Exception as error:  # whatever a crafted one makes of the reader
        raise UnsafePickle("no plain data: %.100r" % error) from None


def newest_collective(content: bytes, rank: int) -> Optional[RecordedCollective]:
    """The last collective or message that a rank has begun, by its dump; None if it has none. Raises UnsafePickle."""
    data = read_pickle(content)
    entries = data.get("entries") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise UnsafePickle("no entries")
    begun = [entry for entry in entries if isinstance(entry, dict) and _number(entry) > 0]
    if not begun:
        return None
    newest = max(begun, key=lambda entry: (_int(entry, "record_id"), _number(entry)))
    # `nccl:all_reduce`, or `nccl:recv 0<-1`, whose numbers are places in the group
    name = str(newest.get("profiling_name") or "").rpartition(":")[2][:100]
    message = _MESSAGE.match(name)
    peer, members = int(message[2]) if message else -1, _members(data, newest)
    group = newest.get("process_group") or newest.get("pg_id") or ""
    parts = group if isinstance(group, (tuple, list)) else (group,)
    return RecordedCollective(
        rank=rank,
        operation=message[1] if message else name,
        number=_number(newest),
        state=str(newest.get("state") or "")[:50],
        group=" ".join(str(part)[:100] for part in parts if isinstance(part, (str, int)))[:200],
        sizes=_sizes(newest),
        members=members,
        peer=members[peer] if 0 <= peer < len(members) else peer,
    )


def _sizes(entry: Mapping[Any, Any]) -> str:
    """`1024x4 Float, 8 Int`; empty if a shape is no plain numbers."""
    try:
        pairs = list(zip(entry["input_sizes"], entry["input_dtypes"]))[:8]  # noqa: B905  # Python 3.8
        return ", ".join("%s %.30s" % ("x".join("%d" % size for size in shape[:10]), kind) for shape, kind in pairs)[
            :200
        ]
    except (KeyError, TypeError):
        return ""


def _members(data: Mapping[Any, Any], entry: Mapping[Any, Any]) -> Tuple[int, ...]:
    """The ranks of the entry's process group, in their order there; empty if the dump does not say it."""
    name = entry.get("process_group")
    key = name[0] if isinstance(name, (tuple, list)) and name else entry.get("pg_id")
    try:
        ranks = data["pg_config"][str(key)]["ranks"][:_MAX_MEMBERS]
        return tuple(int(number) for number in re.findall(r"\d{1,7}", ranks))
    except (KeyError, TypeError):
        return ()


def _number(entry: Mapping[Any, Any]) -> int:
    return _int(entry, "p2p_seq_id" if entry.get("is_p2p") is True else "collective_seq_id")


def _int(entry: Mapping[Any, Any], key: str) -> int:
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def dumps(processes: Iterable[Mapping[str, str]], seconds: float) -> "tuple[List[Tuple[int, bytes]], List[str]]":
    """([(rank, dump)], why not) of the ranks whose variables name a pipe: a line in it makes torch write a dump.
    Children of a rank have its variables too, so several may name one rank."""
    asked: Dict[int, str] = {}
    problems: Dict[int, str] = {}
    began, until = time.time() - 1, time.monotonic() + seconds
    for env in processes:
        rank, prefix = env.get("RANK", ""), env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
        target = env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or ""
        if prefix and rank.isdigit() and int(rank) not in asked:
            known = "" if target else "the job does not say where torch writes its flight recorder"
            problem = known or _poke("%s%s.pipe" % (prefix, rank))
            problems[int(rank)] = problem or "no dump of the flight recorder in %s%s" % (target, rank)
            if not problem:
                asked[int(rank)] = target + rank
    found: Dict[int, bytes] = {}
    sizes: Dict[int, int] = {}
    while len(found) < len(asked) and time.monotonic() < until:
        for number, path in asked.items():
            size = _size(path, began)
            if number not in found and size and sizes.get(number) == size:
                found[number] = content_of(path, MAX_BYTES + 1, follow_link=False)
            sizes[number] = size
        time.sleep(0.1)
    return sorted(found.items()), ["rank %d: %s" % item for item in problems.items() if item[0] not in found]


def _poke(path: str) -> str:
    """Why that was not possible. A pipe that is not read is not opened: that would wait."""
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return "%s is no pipe" % path
        with open(
            path, "wb", buffering=0, opener=lambda name, flags: os.open(name, os.O_WRONLY | os.O_NONBLOCK)
        ) as pipe:
            pipe.write(b"1\n")
    except OSError as error:
        return "no process reads %s (%s)" % (path, error.strerror)
    return ""


def _size(path: str, since: float) -> int:
    """The bytes of a file that was written since then."""
    with suppress(OSError):
        info = os.lstat(path)
        return info.st_size if stat.S_ISREG(info.st_mode) and info.st_mtime >= since else 0
    return 0
