"""What torch's flight recorder says of ranks that all wait: other collectives, sizes or groups, messages in a circle.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ci_tasks.agent.hang.facts import RecordedCollective
from ci_tasks.features.failures.hang.finding import Finding, odd_of_two
from ci_tasks.features.failures.hang.processes import Process, RunProcesses
from ci_tasks.features.failures.hang.wording import names, wait_or_waits, where

_MESSAGE = re.compile(r"(send|recv) \d{1,7}(?:->|<-)(\d{1,7})$")
# All ranks give as much to them; to others, as to all_to_all, each may give its own.
_EQUAL_SIZES = ("all_reduce", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base", "broadcast")


def recorded_mismatch(run: RunProcesses) -> Finding | None:
    """What the last collective or message of each rank shows together."""
    last = [item for item in run.facts.collectives if item.rank in run.ranks and item.state != "completed"]
    return _messages(run, last) or _groups(run, last) or _operations(run, last)


def _messages(run: RunProcesses, last: Sequence[RecordedCollective]) -> Finding | None:
    """Ranks that all wait to receive, each from the next."""
    peers = {item.rank: _peer(item) for item in last if item.operation.startswith("recv ")}
    receives = {rank: peer for rank, peer in peers.items() if peer is not None}
    for first in receives:
        way = [first]
        while receives.get(way[-1]) in receives and receives[way[-1]] not in way:
            way.append(receives[way[-1]])
        if receives[way[-1]] == first and len(way) > 1:
            processes = [run.ranks[rank] for rank in way]
            told = "; ".join(
                f"{p.name} waits in recv from rank {receives[r]} ({where(p)})"
                for r, p in zip(way, processes, strict=True)
            )
            reason = f"each waits for a message of the next: {told}"
            return Finding("wait cycle", reason, [(process, process.main) for process in processes])
    return None


def _peer(item: RecordedCollective) -> int | None:
    """The rank on the other side: `recv 0<-1` has places in the group."""
    message = _MESSAGE.match(item.operation)
    place = int(message[2]) if message else -1
    return item.members[place] if 0 <= place < len(item.members) else None


def _groups(run: RunProcesses, last: Sequence[RecordedCollective]) -> Finding | None:
    """Ranks that are in collectives of two process groups, and all belong to both."""
    of_group = _by(run, last, lambda item: item.group)
    members = [set(item.members) for item in last]
    if len(of_group) != 2 or not all(members) or not all({item.rank for item in last} <= ranks for ranks in members):
        return None
    operations = {item.group: item.operation for item in last}
    told = [_waits(processes, f"{operations[group]} of group {group}") for group, processes in of_group.items()]
    return odd_of_two(list(of_group.values()), f"{'; '.join(told)}: all belong to both groups")


def _operations(run: RunProcesses, last: Sequence[RecordedCollective]) -> Finding | None:
    """The same number is another operation, or has another size, on some ranks."""
    if len({(item.group, item.number) for item in last}) != 1 or any(_MESSAGE.match(item.operation) for item in last):
        return None
    number = last[0].number
    of_operation = _by(run, last, lambda item: item.operation)
    if len(of_operation) == 2:
        told = [_waits(processes, f"{operation} number {number}") for operation, processes in of_operation.items()]
        return odd_of_two(list(of_operation.values()), "; ".join(told))
    of_size = _by(run, last, lambda item: item.sizes)
    if last[0].operation not in _EQUAL_SIZES or len(of_operation) != 1 or len(of_size) != 2 or "" in of_size:
        return None
    what = f"{last[0].operation} number {number}"
    told = [_waits(processes, f"{what} with {size}") for size, processes in of_size.items()]
    return odd_of_two(list(of_size.values()), "; ".join(told))


def _waits(processes: Sequence[Process], what: str) -> str:
    return f"{names(processes)} {wait_or_waits(processes)} in {what} ({where(processes[0])})"


def _by(
    run: RunProcesses, last: Sequence[RecordedCollective], key: Callable[[RecordedCollective], str]
) -> dict[str, list[Process]]:
    groups: dict[str, list[Process]] = {}
    for item in last:
        groups.setdefault(key(item), []).append(run.ranks[item.rank])
    return groups
