"""What a log prints of a run's results: its metrics by rank, and the hashes of its checkpoints' files. Pure.

A line is of the rank that stands before it (`[rank3]:`, `rank=3`); without one, of no rank in particular. A hash is a
line's end as `sha256sum` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.logs.metrics import Series, read_series
from ci_tasks.registry import MetricFormat

_RANK = re.compile(rb"(?i)^.{0,60}?\brank[ _:=]?(\d{1,6})\b")
_MAY_BE_METRICS = re.compile(rb"(?i)step|rollout|eval")
_FILE_HASH = re.compile(rb"\b([0-9a-f]{64}) [ *]?([\w./+@=~-]+\.(?:safetensors|distcp|pth?|bin|ckpt))\s*$")
_ALL_POINTS = 1 << 20  # of one training: what is left out for a chart could be what differs


@dataclass(frozen=True)
class LoggedResults:
    """`series` by rank, those without one under "", the lowest rank first. `files` are hashes by path; a path that is
    printed again has its number."""

    series: Mapping[str, tuple[Series, ...]]
    files: Mapping[str, str]


def read_results(lines: Iterable[bytes], formats: tuple[MetricFormat, ...] = ()) -> LoggedResults:
    ranks: dict[str, list[bytes]] = {}
    files: dict[str, str] = {}
    printed: dict[str, int] = {}
    for line in lines:
        if found := _FILE_HASH.search(line):
            path = found[2].decode()
            count = printed[path] = printed.get(path, 0) + 1
            files[path if count == 1 else f"{path} ({count})"] = found[1].decode()
        elif _MAY_BE_METRICS.search(line):
            rank = _RANK.match(line)
            ranks.setdefault(rank[1].decode() if rank else "", []).append(line)
    series = {rank: read_series(ranks[rank], formats, _ALL_POINTS) for rank in sorted(ranks, key=_place)}
    return LoggedResults(series, files)


def _place(rank: str) -> tuple[int, str]:
    return len(rank), rank
