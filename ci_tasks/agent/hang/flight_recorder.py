"""torch's flight recorder: asking for a dump, and reading it. The pickle is the job's: no name in it is looked up."""

from __future__ import annotations

import io
import os
import pickle
import re
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ..files import content_of
from .facts import RecordedCollective

MAX_BYTES = 4 << 20


class UnsafePickle(ValueError):
    """It asks for more than plain data."""


class _PlainData(pickle._Unpickler):  # the reader in C reserves memory for any index that a pickle names
    def find_class(self, module: str, name: str) -> Any:
        raise UnsafePickle("it names %.100s" % module)


def newest_collective(content: bytes, rank: int) -> Optional[RecordedCollective]:
    """The last collective or message that a rank has started, by its dump; None if it has none. Raises UnsafePickle."""
    if len(content) > MAX_BYTES:
        raise UnsafePickle("more than %d MiB" % (MAX_BYTES >> 20))
    try:
        data = _PlainData(io.BytesIO(content)).load()
        newest = max(data["entries"], key=lambda entry: (_number(entry) > 0, entry["record_id"]), default=None)
        if newest is None or not _number(newest):
            return None
        group = [_text(word, 100) for word in newest["process_group"]]  # number and description
        ranks = data.get("pg_config", {}).get(group[0], {}).get("ranks", "")
        shapes = zip(newest.get("input_sizes", ())[:8], newest.get("input_dtypes", ()))  # noqa: B905  # Python 3.8
        sizes = ["%s %.30s" % ("x".join("%d" % size for size in shape[:10]), kind) for shape, kind in shapes]
        name = _text(newest["profiling_name"], 100).rpartition(":")[2]  # nccl:all_reduce
        return RecordedCollective(
            rank=rank,
            operation=name,
            number=_number(newest),
            state=_text(newest["state"], 50),
            group=" ".join(group),
            sizes=", ".join(sizes)[:200],
            members=tuple(map(int, re.findall(r"\d{1,7}", _text(ranks, 1 << 16)))),
        )
    except UnsafePickle:
        raise
    except Exception as error:  # whatever a crafted one makes of the reader
        raise UnsafePickle("no flight recorder: %.100r" % error) from None


def _number(entry: Mapping[str, Any]) -> int:
    return int(entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"])


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value[:most]


def collectives(
    processes: Iterable[Mapping[str, str]], seconds: float
) -> Tuple[Tuple[RecordedCollective, ...], List[str]]:
    """(the last collective of each rank, why not) of the processes whose variables name a pipe: a line in it makes
    torch write a dump within `seconds`. Children of a rank have its variables too."""
    asked: Dict[str, str] = {}
    could_not: Dict[str, str] = {}
    for env in processes:
        rank, pipe = env.get("RANK", ""), env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
        target = env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
        if pipe and target and rank.isdigit() and rank not in asked:
            try:  # a pipe that no process reads is not opened: that would wait
                _write_line("%s%s.pipe" % (pipe, rank))
                asked[rank] = target + rank
            except OSError as error:
                could_not[rank] = "no process reads %s (%s)" % (error.filename, error.strerror)
    began, until, sizes = time.time() - 1, time.monotonic() + seconds, {}  # type: Tuple[float, float, Dict[str, int]]
    while asked and time.monotonic() < until:
        before, sizes = sizes, {rank: _size(path, began) for rank, path in asked.items()}
        if all(sizes.values()) and sizes == before:
            break
        time.sleep(0.1)
    found = []
    for rank, path in asked.items():
        try:
            content = content_of(path, MAX_BYTES + 1, follow_link=False) if sizes.get(rank) else b""
            found.append(newest_collective(content, int(rank)))
        except UnsafePickle as error:
            could_not[rank] = "its flight recorder %s is not read: %s" % (path, error)
    return tuple(filter(None, found)), ["rank %s: %s" % item for item in could_not.items()]


def _write_line(path: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "wb", buffering=0) as pipe:
        pipe.write(b"1\n")


def _size(path: str, since: float) -> int:
    """The bytes of a file that was written since then."""
    with suppress(OSError):
        info = os.lstat(path)
        return info.st_size if info.st_mtime >= since else 0
    return 0
