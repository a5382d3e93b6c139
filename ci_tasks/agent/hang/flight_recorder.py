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
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

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
    """The last collective or message that a rank has begun, by its dump; None where it has none. Raises
    UnsafePickle."""
    data = read_pickle(content)
    entries = data.get("entries") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise UnsafePickle("no entries")
    collectives = [entry for entry in entries if isinstance(entry, dict) and _number(entry) > 0]
    if not collectives:
        return None
    newest = max(collectives, key=lambda entry: (_int(entry, "record_id"), _number(entry)))
    operation, peer = _operation(newest)
    members = _members(data, newest)
    return RecordedCollective(
        rank=rank,
        operation=operation,
        number=_number(newest),
        state=str(newest.get("state") or "")[:50],
        group=_group(newest),
        sizes=_sizes(newest),
        members=members,
        peer=members[peer] if 0 <= peer < len(members) else peer,
    )


def _operation(entry: Mapping[Any, Any]) -> Tuple[str, int]:
    """(`all_reduce`, -1) of `nccl:all_reduce`, (`recv`, 1) of `nccl:recv 0<-1`; the numbers are places in the group."""
    name = str(entry.get("profiling_name") or "").rpartition(":")[2][:100]
    message = _MESSAGE.match(name)
    if message is None:
        return name, -1
    return message.group(1), int(message.group(2))


def _sizes(entry: Mapping[Any, Any]) -> str:
    """Of tensors whose shapes are no plain numbers nothing is said."""
    shapes, types = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(shapes, (list, tuple)) or not isinstance(types, (list, tuple)):
        return ""
    texts = []
    for shape, kind in zip(shapes, types):  # noqa: B905  # Python 3.8
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int for size in shape):
            return ""
        texts.append("%s %s" % ("x".join(str(size) for size in shape[:10]), str(kind)[:30]))
    return ", ".join(texts[:8])[:200]


def _members(data: Mapping[Any, Any], entry: Mapping[Any, Any]) -> Tuple[int, ...]:
    """The ranks of the entry's process group, in their order there; empty where the dump does not say it."""
    groups, name = data.get("pg_config"), entry.get("process_group")
    key = name[0] if isinstance(name, (tuple, list)) and name else entry.get("pg_id")
    group = groups.get(str(key)) if isinstance(groups, dict) else None
    ranks = group.get("ranks") if isinstance(group, dict) else None
    numbers = re.findall(r"\d{1,7}", ranks[:_MAX_MEMBERS]) if isinstance(ranks, str) else []
    return tuple(int(number) for number in numbers)


def _number(entry: Mapping[Any, Any]) -> int:
    return _int(entry, "p2p_seq_id" if entry.get("is_p2p") is True else "collective_seq_id")


def _int(entry: Mapping[Any, Any], key: str) -> int:
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def _group(entry: Mapping[Any, Any]) -> str:
    name = entry.get("process_group") or entry.get("pg_id") or ""
    parts = name if isinstance(name, (tuple, list)) else (name,)
    return " ".join(str(part)[:100] for part in parts if isinstance(part, (str, int)))[:200]


# -- in the place of the job -------------------------------------------------------------------------------------------


class Dump(NamedTuple):
    rank: int
    content: bytes


def dumps(processes: Iterable[Mapping[str, str]], seconds: float) -> "tuple[List[Dump], List[str]]":
    """(dumps, why not) of the ranks whose variables name a pipe: a byte in it makes torch write one. Children of a rank
    have its variables too, so several may name one rank."""
    asked: Dict[int, str] = {}
    problems: Dict[int, str] = {}
    for env in processes:
        rank, prefix = env.get("RANK", ""), env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
        target = env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or ""
        if not prefix or not rank.isdigit() or int(rank) in asked:
            continue
        pipe = "%s%s.pipe" % (prefix, rank)
        problem = _poke(pipe) if target else "the job does not say where torch writes its flight recorder"
        if problem:
            problems.setdefault(int(rank), problem)
        else:
            asked[int(rank)] = target + rank
    could_not = ["rank %d: %s" % (rank, problem) for rank, problem in problems.items() if rank not in asked]
    began, found = time.time() - 1, {}  # type: ignore[var-annotated]
    until = time.monotonic() + seconds
    sizes: Dict[int, int] = {}
    while len(found) < len(asked) and time.monotonic() < until:
        for rank_number, path in asked.items():
            info = _stat(path)
            if rank_number not in found and info is not None and info.st_mtime >= began and info.st_size:
                if sizes.get(rank_number) == info.st_size:
                    found[rank_number] = content_of(path, MAX_BYTES + 1, follow_link=False)
                sizes[rank_number] = info.st_size
        time.sleep(0.1)
    could_not += [
        "rank %d: no dump of the flight recorder in %s" % (rank, asked[rank]) for rank in asked if rank not in found
    ]
    return [Dump(rank, content) for rank, content in sorted(found.items())], could_not


def _poke(path: str) -> str:
    """Why that was not possible. Without a reader the pipe is not opened: whoever opened it then would wait."""
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return "%s is no pipe" % path
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return "nobody reads %s (%s)" % (path, error.strerror)
    try:
        os.write(pipe, b"1\n")
    except OSError as error:
        return "nobody reads %s (%s)" % (path, error.strerror)
    finally:
        os.close(pipe)
    return ""


def _stat(path: str) -> Optional[os.stat_result]:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None
