"""Why ranks wait for each other: one is gone, is elsewhere, or is in another collective. Pure."""

from __future__ import annotations

from ci_tasks.agent.gpus.lock_files import numbered
from ci_tasks.agent.hang.facts import ProcessFacts
from ci_tasks.features.failures.hang import waits
from ci_tasks.features.failures.hang.finding import Finding, mains_of, odd_of_two
from ci_tasks.features.failures.hang.processes import Process, RunProcesses, ThreadState, rank_in
from ci_tasks.features.failures.hang.ras import read_ras
from ci_tasks.features.failures.hang.recorded import recorded_mismatch
from ci_tasks.features.failures.hang.wait_graph import last_of
from ci_tasks.features.failures.hang.wording import (
    be,
    collective,
    how_it_ended,
    names,
    place_of,
    wait_or_waits,
    waiting_in,
    where,
)

WAITS_FOR_RANKS = (waits.COLLECTIVE, waits.GPU, waits.BARRIER)
_PEERS = ("send", "recv", "batch_isend_irecv", "send_object_list", "recv_object_list")  # between two ranks


def missing_rank(run: RunProcesses) -> Finding | None:
    """Ranks that should be there and are not, while the others wait for them."""
    ranks = run.ranks
    missing = sorted(set(range(run.world)) - set(ranks)) if run.world and run.world <= 1 << 16 else []
    waiting = [process for process in ranks.values() if process.main.wait.kind in WAITS_FOR_RANKS]
    if not missing or not waiting or not ranks:
        return None
    dead = {rank: item for item in run.facts.dead for rank in (rank_in(item.env),) if rank in missing}
    ends = [f"rank {rank}: {dead[rank].error or how_it_ended(dead[rank].how)}" for rank in missing if rank in dead]
    told = f" ({'; '.join(ends[:3])})" if ends else ""
    why = f"{numbered('rank', missing)} {'is' if len(missing) == 1 else 'are'} gone{told}; {waiting_in(waiting)}"
    gone = [_gone(run, rank) for rank in missing[:8]]
    return Finding("dead rank", why, gone)


def odd_ranks(run: RunProcesses) -> Finding | None:
    """Ranks that are elsewhere than those that wait for them."""
    ranks = run.ranks
    inside = {rank: process for rank, process in ranks.items() if process.main.wait.kind in WAITS_FOR_RANKS}
    outside = {rank: process for rank, process in ranks.items() if rank not in inside}
    if len(ranks) < 2 or not inside:
        return None
    if outside:
        return _outside(run, list(outside.values()), list(inside.values()))
    return _different_collectives(run, inside)


def _outside(run: RunProcesses, odd: list[Process], waiting: list[Process]) -> Finding | None:
    if not all(process.main.stack and process.main.stack.python for process in odd):
        return None  # an interpreter that starts or ends has no frame of Python
    computing = [process for process in odd if process.main.wait.kind == waits.COMPUTES]
    rest = f"{names(waiting)} {wait_or_waits(waiting)} in {collective(run, waiting)}"
    if computing and len(computing) == len(odd):
        why = f"{names(odd)} still {'computes' if len(odd) == 1 else 'compute'}: {where(odd[0])}; {rest}"
        return Finding("straggler", why, mains_of(odd))
    if len({place_of(process) for process in odd}) > 1 and len(odd) > len(waiting):
        return None
    blocked = [process for process in odd if process not in computing] or odd
    ends = [last_of(run, process) for process in blocked]
    why = f"{names(blocked)} {wait_or_waits(blocked)} in {where(blocked[0])}; {rest}"
    if ends[0] is not blocked[0]:
        why += f"; it waits for {ends[0].name}: {where(ends[0])}"
        return Finding("rank waits elsewhere", why, [*mains_of(blocked), *mains_of(ends[:1])])
    return Finding("rank waits elsewhere", why, mains_of(blocked))


def _different_collectives(run: RunProcesses, inside: dict[int, Process]) -> Finding | None:
    """All are in collectives, but not in the same."""
    behind, told = _behind(run)
    odd = [process for process in behind if process in inside.values()]
    others = [process for process in inside.values() if process not in odd]
    if odd and others:
        why = f"{names(odd)} {be(odd)} behind ({told}): {where(odd[0])}; {waiting_in(others)}"
        return Finding("collectives differ", why, mains_of(odd))
    return recorded_mismatch(run) or _mismatch_in_stacks(list(inside.values()))


def _mismatch_in_stacks(processes: list[Process]) -> Finding | None:
    """Of ranks that wait for their GPUs the stacks do not say in which collective they are."""
    groups: dict[tuple[str, str], list[Process]] = {}
    for process in processes:
        groups.setdefault(place_of(process), []).append(process)
    kinds = {process.main.wait.kind for process in processes}
    if len(groups) != 2 or waits.GPU in kinds or any(process.main.wait.call in _PEERS for process in processes):
        return None
    found = list(groups.values())
    return odd_of_two(found, "; ".join(waiting_in(group) for group in sorted(found, key=len)))


def _behind(run: RunProcesses) -> tuple[list[Process], str]:
    """(the processes that have begun fewer collectives than others, who says so), by NCCL or torch's recorder."""
    for place, text in run.facts.ras.items():
        answer = read_ras(text)
        processes = [run.by_id[place, pid] for pid in answer.behind if (place, pid) in run.by_id]
        if processes:
            counts = sorted((pid, count) for pid, count in answer.counts.items() if (place, pid) in run.by_id)
            told = ", ".join(f"{run.by_id[place, pid].name}: operation {count}" for pid, count in counts[:8])
            return processes, f"NCCL, {told}"
    if len({item.group for item in run.facts.collectives}) != 1:
        return [], ""  # each process group has numbers of its own
    last = {item.rank: item.number for item in run.facts.collectives if item.rank in run.ranks}
    most = max(last.values(), default=0)
    behind = [rank for rank, number in sorted(last.items()) if number < most]
    told = ", ".join(f"rank {rank}: number {number}" for rank, number in sorted(last.items())[:8])
    return [run.ranks[rank] for rank in behind], f"torch's flight recorder, {told}"


def _gone(run: RunProcesses, rank: int) -> tuple[Process, ThreadState]:
    """A rank that is no more, as a process without threads."""
    dead = next((item for item in run.facts.dead if rank_in(item.env) == rank), None)
    process = Process(ProcessFacts(dead.pid if dead else 0, 0, state="gone"), "", 1.0, {}, rank)
    return process, ThreadState(None, None, waits.Wait(waits.UNKNOWN))
