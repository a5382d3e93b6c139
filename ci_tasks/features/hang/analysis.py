"""From what was seen of a run's processes to why it hangs: the first rule that finds something, and the place of each
process. Pure.

The rules begin with the surest. One names a culprit only if it was seen what it waits for, or why it cannot continue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ci_tasks.agent.gpu_locks import numbered
from ci_tasks.agent.hang import HangFacts, RecordedCollective
from ci_tasks.features.hang import processes as waits
from ci_tasks.features.hang.processes import Process, RunProcesses, Thread, names, that, waiting
from ci_tasks.records import Hang, HangCulprit, HangGroup
from ci_tasks.results.runs import iso_time

SHOWN, CONTRADICTED, NOT_DETERMINED = "shown", "contradicted", "not determined"
EXIT_CODES = {SHOWN: 0, CONTRADICTED: 1, NOT_DETERMINED: 4}
_LAUNCHED = re.compile(r"has launched up to operation (\d{1,18}) -- GPU \d{1,4} managed by process (\d{1,10})")
_BETWEEN_TWO = ("send", "recv", "batch_isend_irecv")
# What a single process waits for, by its call.
_KINDS = (("lock", r"^with |\.acquire\("), ("queue", r"^queues?\."), ("import", "^import$"))
_MOST_NAMED = 8
_MAX_GROUPS, _MAX_FRAMES, _MAX_REASONS = 40, 12, 100


def analyse_hang(facts: HangFacts) -> Hang:
    run = RunProcesses(facts)
    groups = tuple(_groups(run))[:_MAX_GROUPS]
    seen = "; ".join(f"{group.who}: {group.where}" for group in groups[:3]) or "no process was seen"
    not_determined = Hang(NOT_DETERMINED, "", f"not determined; {seen}")
    found = next((hang for rule in RULES if (hang := rule(run))), not_determined)
    return replace(
        found, groups=groups, could_not=facts.could_not[:_MAX_REASONS], taken_at=iso_time(facts.taken_at),
        seconds=facts.seconds, trigger=facts.reason,
    )  # fmt: skip


def _groups(run: RunProcesses) -> Iterator[HangGroup]:
    """Processes whose main threads are at the same place, ranks first and the largest group first."""
    found: dict[tuple[bool, str, str], list[Process]] = {}
    for process in run.by_id.values():
        program = "" if process.main.frames else process.program
        found.setdefault((process.rank is None, process.main.where, program), []).append(process)
    for key, group in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0].facts.pid)):
        frames = tuple(f"{f.function} {f.file}:{f.line}" for f in group[0].main.frames[:_MAX_FRAMES])
        are_named = key[0] is False or len(group) <= 4
        who = names(group) if are_named else f"{len(group)} processes {group[0].program}"
        yield HangGroup(who, group[0].main.where, frames, len(group))


def _culprit(thread: Thread) -> HangCulprit:
    process = thread.process
    culprit = HangCulprit(process.name, thread.does, process.facts.pid, process.rank)
    frame = thread.frame
    return replace(culprit, function=frame.function, file=frame.file, line=frame.line) if frame else culprit


# -- what a process alone shows ----------------------------------------------------------------------------------------


def _stopped(run: RunProcesses) -> Hang | None:
    """By a signal, or by the kernel, which may hold one thread alone."""
    every = run.by_id.values()
    if found := [process for process in every if process.facts.state == "T"]:
        at = found[0].main.text or "state T"
        reason = f"{that(found, 'is', 'are')} stopped ({at}); SIGCONT continues {'it' if len(found) == 1 else 'them'}"
        return Hang(SHOWN, "stopped", reason, _mains(found))
    if found := [process for process in every if process.facts.held]:
        first = found[0]
        who = that(found, *(("is", "are") if first.facts.state == "D" else ("has a thread", "have threads")))
        place = "; ".join(filter(None, (f"state D, {first.facts.held[0]}".rstrip(", "), first.main.text)))
        reason = f"{who} in uninterruptible sleep ({place}): a disk, a file system or a driver"
        return Hang(SHOWN, "uninterruptible", reason, _mains(found))
    return None


# -- ranks -------------------------------------------------------------------------------------------------------------


def _missing_rank(run: RunProcesses) -> Hang | None:
    """Ranks that should be there and are not, while the others wait for them."""
    missing = sorted(set(range(run.world or 0)) - set(run.ranks))
    inside = [process for process in run.ranks.values() if process.waits_for_ranks]
    if not missing or not inside:
        return None
    ranks = [(waits.rank_in(process.env), process) for process in run.facts.gone]
    parents = {(rank, process.pid) for rank, process in ranks}  # a pid is of its container
    # What a rank has started has its variables too.
    dead = {rank: process for rank, process in ranks if rank in missing and (rank, process.ppid) not in parents}
    ends = "; ".join(f"rank {rank}: {process.end}" for rank, process in sorted(dead.items())[:3])
    are_gone = f"{numbered('rank', missing)} {'is' if len(missing) == 1 else 'are'} gone{f' ({ends})' if ends else ''}"
    pids = [(rank, dead[rank].pid if rank in dead else None) for rank in missing[:_MOST_NAMED]]
    gone = tuple(HangCulprit(f"rank {rank}", "gone", pid, rank) for rank, pid in pids)
    return Hang(SHOWN, "dead rank", f"{are_gone}; {waiting(inside)}", gone)


def _goes_on(run: RunProcesses) -> Hang | None:
    """Silence of the log alone is no stall: a process may compute. Ranks that wait for others may do that with all of a
    processor, so what counts is who uses it and does not wait."""
    if run.facts.reason != "stall":
        return None
    # Other threads of one that is in a collective use a processor, too.
    beside = [each for each in run.by_id.values() if each.facts.cpu >= waits.BUSY and not each.waits_for_ranks]
    busy = [each for each in run.by_id.values() if _computes(each) or each in beside]
    moving = [process for process in busy if not process.stays or not _computes(process)]
    if moving:
        why = f"the log is silent, but {that(moving, 'continues', 'continue')}: {moving[0].main.where}"
        return Hang(CONTRADICTED, "goes on", why)
    if busy:
        who = f"{that(busy, 'computes', 'compute')} ({busy[0].main.where})"
        return Hang(NOT_DETERMINED, "computes", f"not determined; {who}: slow work, or an endless loop")
    return None


def _computes(process: Process) -> bool:
    return process.main.kind == waits.COMPUTES


def _rank_elsewhere(run: RunProcesses) -> Hang | None:
    """Ranks that are elsewhere than the ranks that wait for them."""
    inside = [process for process in run.ranks.values() if process.waits_for_ranks]
    odd = [process for process in run.ranks.values() if process not in inside]
    # An interpreter that starts or ends has no frame of Python.
    if not inside or not odd or not all(process.main.frames for process in odd):
        return None
    rest = f"{that(inside, 'waits', 'wait')} in {_collective(run, inside)}"
    blocked = [process for process in odd if not _computes(process)]
    if not blocked:
        why = f"{that(odd, 'still computes', 'still compute')}: {odd[0].main.where}; {rest}"
        return Hang(SHOWN, "straggler", why, _mains(odd))
    if len({process.main.where for process in odd}) > 1 and len(odd) > len(inside):
        return None
    why, culprits = f"{waiting(blocked)}; {rest}", _mains(blocked)
    for waiter, last in [(process, run.chain(process.main)[-1]) for process in blocked]:
        if last.process is not waiter:
            why = f"{why}; {waiter.name} waits for {last.process.name}: {last.where}"
            return Hang(SHOWN, "rank waits elsewhere", why, (*culprits, _culprit(last)))
    return Hang(SHOWN, "rank waits elsewhere", why, culprits)


def _collective(run: RunProcesses, inside: Sequence[Process]) -> str:
    """`all_reduce number 412 (synchronize at train.py:88)`, if torch's recorder knows the number."""
    first, members = inside[0].main, {process.rank for process in inside}
    recorded = {(item.operation, item.number) for item in run.facts.collectives if item.rank in members}
    if len(recorded) != 1 or first.kind == waits.BARRIER:
        return first.where
    ((operation, number),) = recorded
    return f"{operation} number {number} ({first.where})"


def _different_collectives(run: RunProcesses) -> Hang | None:
    """All ranks wait for each other, but not in the same collective."""
    ranks = list(run.ranks.values())
    if len(ranks) < 2 or not all(process.waits_for_ranks for process in ranks):
        return None
    last = [item for item in run.facts.collectives if item.rank in run.ranks and item.state != "completed"]
    return _behind(run) or _other_operation(run, last) or _gpu_work(run, last)


def _behind(run: RunProcesses) -> Hang | None:
    """Ranks that have started fewer collectives than others, by NCCL or torch's recorder."""
    for teller, word, begun in _counts(run):
        most = max(begun.values(), default=0)
        odd = [process for process in begun if begun[process] < most]
        others = [process for process in run.ranks.values() if process not in odd]
        if odd and others:
            counts = [f"{process.name}: {word} {count}" for process, count in list(begun.items())[:_MOST_NAMED]]
            why = f"{that(odd, 'is', 'are')} behind ({teller}, {', '.join(counts)}): {odd[0].main.where}"
            if odd[0].main.kind == waits.GPU:  # all of these that it has started, the others have started too
                why += ", for earlier work on its GPU: a kernel that does not end, or a collective of another group"
            return Hang(SHOWN, "collectives differ", f"{why}; {waiting(others)}", _mains(odd))
    return None


def _counts(run: RunProcesses) -> Iterator[tuple[str, str, dict[Process, int]]]:
    """Who tells it, its word for a number, and how many collectives each rank has started."""
    for place, text in run.facts.ras.items():
        own = ((run.by_id.get((place, pid)), count) for pid, count in read_ras(text).items())
        yield "NCCL", "operation", {process: count for process, count in own if process and process.rank is not None}
    if len({item.group for item in run.facts.collectives}) == 1:  # each process group has numbers of its own
        last = {run.ranks[item.rank]: item.number for item in run.facts.collectives if item.rank in run.ranks}
        yield "torch's flight recorder", "number", last


def read_ras(text: str) -> dict[int, int]:
    """The operations that each process has started, by pid, if NCCL's RAS service saw that they differ; nothing if two
    communicators contradict each other about a process. A rank in its answer is one of its communicator."""
    counts: dict[int, int] = {}
    for count, pid in _LAUNCHED.findall(text[: 1 << 20]):
        if counts.setdefault(int(pid), int(count)) != int(count):
            return {}
    return counts


def _other_operation(run: RunProcesses, last: Sequence[RecordedCollective]) -> Hang | None:
    """One rank in another operation than the others is the odd one; of one against one both are named; more may be two
    process groups. By torch's flight recorder, if all are at one number. Else by the stacks, which do not say it of
    ranks that wait for their GPUs."""
    where = {rank: process.main.where for rank, process in run.ranks.items()}
    is_message = any(item.operation.startswith(("send ", "recv ")) for item in last)
    if not is_message and len({(item.group, item.number) for item in last}) == 1:
        where = {item.rank: f"{item.operation} number {item.number}" for item in last}
    elif any(each.main.kind == waits.GPU or each.main.call in _BETWEEN_TWO for each in run.ranks.values()):
        return None
    groups: dict[str, list[Process]] = {}
    for rank, words in where.items():
        groups.setdefault(words, []).append(run.ranks[rank])
    if len(groups) != 2 or min(map(len, groups.values())) != 1:
        return None
    told, named = [], []
    for words, several in sorted(groups.items(), key=lambda item: len(item[1])):
        stands = several[0].main.where
        told.append(f"{that(several, 'waits', 'wait')} in {words}{f' ({stands})' if stands != words else ''}")
        named += several if len(several) == 1 else []
    why = f"the ranks are in different collectives: {'; '.join(told)}"
    return Hang(SHOWN, "collectives differ", why, _mains(named))


def _gpu_work(run: RunProcesses, last: Sequence[RecordedCollective]) -> Hang | None:
    """All ranks wait for their GPUs, and none is seen to be behind the others: which one they wait for is shown only by
    a collective that has not started on it."""
    ranks = list(run.ranks.values())
    if any(process.main.kind != waits.GPU or not process.stays for process in ranks):
        return None
    words = "a kernel that does not end, or slow work"
    early = [run.ranks[item.rank] for item in last if item.state == "scheduled"]
    if 0 < len(early) < len(last) == len(ranks) and len({(item.group, item.number) for item in last}) == 1:
        before = f"before {last[0].operation} number {last[0].number}, which the others are in"
        why = f"the GPU of {names(early)} still works {before}: {words}; {waiting(early)}"
        return Hang(SHOWN, "kernel", why, _mains(early))
    return Hang(NOT_DETERMINED, "kernel", f"{waiting(ranks)}; none is seen to be behind: {words}")


# -- any processes -----------------------------------------------------------------------------------------------------


def _chain(run: RunProcesses) -> Hang | None:
    """From processes that wait for another one to the one at the end, through children, workers and threads; if all of
    them lead to the same end."""
    ways = [way for way in (run.chain(process.main) for process in run.by_id.values()) if len(way) > 1]
    ways = [way for way in ways if way[0].process is not way[-1].process]
    if len({way[-1].process for way in ways}) != 1:
        return None
    way = max(ways, key=len)
    last = way[-1]
    if last.kind in (waits.POLL, waits.CHILD) or last.process.program in waits.CLIENTS:
        return None  # an idle server, or one that waits for what was not seen
    before = [thread for thread in way if thread.process is not last.process][-1]
    does = f"computes: {last.text or last.process.program}" if last.kind == waits.COMPUTES else last.does
    why = f"{before.process.name} waits for {last.process.name}: {before.where}; {last.process.name}: {does}"
    return Hang(SHOWN, "child" if before.kind == waits.CHILD else "waits for a process", why, (_culprit(last),))


def _single(run: RunProcesses) -> Hang | None:
    """The only Python process: what it waits for, or computes."""
    pythons = [process for process in run.by_id.values() if process.facts.python and process.main.frames]
    if len(pythons) != 1:
        return None
    process, thread = pythons[0], run.chain(pythons[0].main)[-1]
    if thread.frame is None or thread.kind == waits.UNKNOWN:
        return None
    if thread.kind != waits.COMPUTES:
        kind = next((kind for kind, call in _KINDS if re.search(call, thread.call)), thread.kind)
        return Hang(SHOWN, kind, f"{process.name} {thread.does}", (_culprit(thread),))
    if not process.stays:
        return Hang(CONTRADICTED, "goes on", f"{process.name} goes on: {thread.text}")
    why = f"{process.name} computes in {thread.text}, in both looks: an endless loop, or slow work"
    return Hang(SHOWN, "computes", why, (_culprit(thread),))


def _mains(processes: Sequence[Process]) -> tuple[HangCulprit, ...]:
    return tuple(_culprit(process.main) for process in processes)


RULES = (_stopped, _missing_rank, _goes_on, _rank_elsewhere, _different_collectives, _chain, _single)
