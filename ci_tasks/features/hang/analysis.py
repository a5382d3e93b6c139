"""From what was seen of a run's processes to why it hangs: the first rule that finds something, and who stands where.
Pure.

The rules begin with the surest. One names a culprit only if it was seen what it waits for, or why it cannot go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from ci_tasks.agent.gpus.locks import numbered
from ci_tasks.agent.hang.facts import HangFacts, RecordedCollective
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.hang import waits
from ci_tasks.features.hang.processes import BUSY, CLIENTS, Process, RunProcesses, Thread, names, rank_in, that, waiting
from ci_tasks.records import Hang, HangCulprit, HangGroup

SHOWN, CONTRADICTED, NOT_DETERMINED = "shown", "contradicted", "not determined"
_LAUNCHED = re.compile(r"has launched up to operation (\d{1,18}) -- GPU \d{1,4} managed by process (\d{1,10})")
_BETWEEN_TWO = ("send", "recv", "batch_isend_irecv")
_MOST_NAMED = 8
EXIT_CODES = {SHOWN: 0, CONTRADICTED: 1, NOT_DETERMINED: 4}
_MAX_GROUPS, _MAX_FRAMES, _MAX_REASONS = 40, 12, 100


@dataclass(frozen=True)
class Finding:
    """`kind` is one word for what it is, `reason` one line; `outcome` as in `records.Hang`. `gone` are ranks that are
    culprits and no more processes."""

    kind: str
    reason: str
    culprits: Sequence[Thread] = ()
    outcome: str = SHOWN
    gone: Sequence[HangCulprit] = ()


Rule = Callable[[RunProcesses], "Finding | None"]


def analyse_hang(facts: HangFacts) -> Hang:
    run = RunProcesses(facts)
    groups = tuple(_groups(run))[:_MAX_GROUPS]
    found = next((finding for rule in RULES if (finding := rule(run))), None)
    if found is None:
        seen = "; ".join(f"{group.who}: {group.where}" for group in groups[:3]) or "no process was seen"
        found = Finding("", f"not determined; {seen}", outcome=NOT_DETERMINED)
    return Hang(
        outcome=found.outcome,
        kind=found.kind,
        reason=found.reason,
        culprits=(*found.gone, *map(_culprit, found.culprits)),
        groups=groups,
        could_not=facts.could_not[:_MAX_REASONS],
        taken_at=_iso(facts.taken_at),
        seconds=facts.seconds,
        trigger=facts.reason,
    )


def _groups(run: RunProcesses) -> Iterator[HangGroup]:
    """Processes with equal stacks of the main thread, ranks first and the largest group first."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for process in run.by_id.values():
        found.setdefault((process.rank is None, *_stack_key(process.main)), []).append(process)
    for key, group in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0].id)):
        frames = tuple(f"{f.function} {f.file}:{f.line}" for f in group[0].main.stack.frames[:_MAX_FRAMES])
        are_named = key[0] is False or len(group) <= 4
        who = names(group) if are_named else f"{len(group)} processes {group[0].program}"
        yield HangGroup(who, group[0].main.where, frames, len(group))


def _stack_key(main: Thread) -> tuple[object, ...]:
    if not main.stack.frames:
        return (main.process.program, main.process.facts.state, main.wait.kind)
    own = tuple((f.function, f.file, f.line) for f in main.stack.frames if not waits.is_library(f))
    return (main.wait.kind, main.wait.call, own)


def _culprit(thread: Thread) -> HangCulprit:
    process = thread.process
    culprit = HangCulprit(process.name, thread.does, process.facts.pid, process.rank)
    frame = thread.wait.frame
    return replace(culprit, function=frame.function, file=frame.file, line=frame.line) if frame else culprit


def _iso(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


# -- what a process alone shows ----------------------------------------------------------------------------------------


def _stopped(run: RunProcesses) -> Finding | None:
    """By a signal, or by the kernel."""
    every = run.by_id.values()
    found = [process for process in every if process.facts.state == "T"]
    if found:
        why = f"{that(found, 'is', 'are')} stopped{_inside(found[0])}: SIGCONT ends that"
        return Finding("stopped", why, _mains(found))
    found = [each for each in every if any(one.state == "D" and one.still for one in each.facts.threads)]
    if found:
        channel = next((one.wchan for one in found[0].facts.threads if one.state == "D"), "")
        why = f"{that(found, 'is', 'are')} in uninterruptible sleep (state D{f', {channel}' if channel else ''})"
        return Finding("uninterruptible", f"{why}{_inside(found[0])}: a disk, a file system or a driver", _mains(found))
    return None


# -- ranks -------------------------------------------------------------------------------------------------------------


def _missing_rank(run: RunProcesses) -> Finding | None:
    """Ranks that should be there and are not, while the others wait for them."""
    missing = sorted(set(range(run.world or 0)) - set(run.ranks))
    inside = [process for process in run.ranks.values() if process.main.wait.kind in waits.FOR_RANKS]
    if not missing or not inside:
        return None
    dead = {rank: item for item in run.facts.dead if (rank := rank_in(item.env)) in missing}
    ends = [f"rank {rank}: {dead[rank].error or _end(dead[rank].how)}" for rank in missing if rank in dead]
    told = f" ({'; '.join(ends[:3])})" if ends else ""
    why = f"{numbered('rank', missing)} {'is' if len(missing) == 1 else 'are'} gone{told}; {waiting(inside)}"
    pids = {rank: dead[rank].pid if rank in dead else 0 for rank in missing[:_MOST_NAMED]}
    return Finding(
        "dead rank", why, gone=[HangCulprit(f"rank {rank}", "gone", pid, rank) for rank, pid in pids.items()]
    )


def _end(how: str) -> str:
    return "it ended by itself" if how else "it was killed, or ended without Python's exit"


def _goes_on(run: RunProcesses) -> Finding | None:
    """Silence of the log alone is no stall: a process may compute. Ranks that wait for others may do that with all of a
    processor, so what counts is who uses it and does not wait."""
    if run.facts.reason != "stall":
        return None
    busy = [process for process in run.by_id.values() if _computes(process) or _has_computed(process)]
    moving = [process for process in busy if not process.stays or not _computes(process)]
    if moving:
        why = f"the log is silent, but {that(moving, 'goes', 'go')} on: {moving[0].main.where}"
        return Finding("goes on", why, outcome=CONTRADICTED)
    if busy:
        why = f"not determined; {that(busy, 'computes', 'compute')}{_inside(busy[0])}: slow work, or an endless loop"
        return Finding("computes", why, outcome=NOT_DETERMINED)
    return None


def _computes(process: Process) -> bool:
    return any(thread.wait.kind == waits.COMPUTES for thread in process.threads)


def _has_computed(process: Process) -> bool:
    """Since the look before in the same silence, and is not in a collective, where it would do so too."""
    return (process.facts.busy_since or 0.0) >= BUSY and process.main.wait.kind not in waits.FOR_RANKS


def _rank_elsewhere(run: RunProcesses) -> Finding | None:
    """Ranks that are elsewhere than those that wait for them."""
    inside = [process for process in run.ranks.values() if process.main.wait.kind in waits.FOR_RANKS]
    odd = [process for process in run.ranks.values() if process not in inside]
    # An interpreter that starts or ends has no frame of Python.
    if not inside or not odd or not all(process.main.stack.frames for process in odd):
        return None
    rest = f"{that(inside, 'waits', 'wait')} in {_collective(run, inside)}"
    computing = [process for process in odd if process.main.wait.kind == waits.COMPUTES]
    if len(computing) == len(odd):
        why = f"{that(odd, 'still computes', 'still compute')}: {odd[0].main.where}; {rest}"
        return Finding("straggler", why, _mains(odd))
    if len({process.main.where for process in odd}) > 1 and len(odd) > len(inside):
        return None
    blocked = [process for process in odd if process not in computing]
    why, culprits = f"{waiting(blocked)}; {rest}", _mains(blocked)
    for waiter, last in [(process, run.last(process)) for process in blocked]:
        if last.process is not waiter:
            why = f"{why}; {waiter.name} waits for {last.process.name}: {last.where}"
            return Finding("rank waits elsewhere", why, [*culprits, last])
    return Finding("rank waits elsewhere", why, culprits)


def _collective(run: RunProcesses, inside: Sequence[Process]) -> str:
    """`all_reduce number 412 (synchronize at train.py:88)`, if torch's recorder knows the number."""
    first, members = inside[0].main, {process.rank for process in inside}
    recorded = {(item.operation, item.number) for item in run.facts.collectives if item.rank in members}
    if len(recorded) != 1 or first.wait.kind == waits.BARRIER:
        return first.where
    ((operation, number),) = recorded
    return f"{operation} number {number} ({first.where})"


def _different_collectives(run: RunProcesses) -> Finding | None:
    """All ranks wait for each other, but not in the same collective."""
    ranks = list(run.ranks.values())
    if len(ranks) < 2 or any(process.main.wait.kind not in waits.FOR_RANKS for process in ranks):
        return None
    last = [item for item in run.facts.collectives if item.rank in run.ranks and item.state != "completed"]
    return _behind(run) or _recorded(run, last) or _in_stacks(run) or _gpu_work(run, last)


def _behind(run: RunProcesses) -> Finding | None:
    """Ranks that have begun fewer collectives than others, by NCCL or torch's recorder."""
    for teller, word, begun in _counts(run):
        most = max(begun.values(), default=0)
        odd = [process for process in begun if begun[process] < most]
        others = [process for process in run.ranks.values() if process not in odd]
        if odd and others:
            counts = [f"{process.name}: {word} {count}" for process, count in list(begun.items())[:_MOST_NAMED]]
            why = f"{that(odd, 'is', 'are')} behind ({teller}, {', '.join(counts)}): {odd[0].main.where}"
            if odd[0].main.wait.kind == waits.GPU:  # all of these that it has begun, the others have begun too
                why += ", for earlier work on its GPU: a kernel that does not end, or a collective of another group"
            return Finding("collectives differ", f"{why}; {waiting(others)}", _mains(odd))
    return None


def _counts(run: RunProcesses) -> Iterator[tuple[str, str, dict[Process, int]]]:
    """Who tells it, its word for a number, and how many collectives each rank has begun."""
    for place, text in run.facts.ras.items():
        by_pid = read_ras(text)
        own = {run.by_id[place, pid]: count for pid, count in by_pid.items() if (place, pid) in run.by_id}
        yield "NCCL", "operation", {process: count for process, count in own.items() if process.rank is not None}
    if len({item.group for item in run.facts.collectives}) == 1:  # each process group has numbers of its own
        last = {run.ranks[item.rank]: item.number for item in run.facts.collectives if item.rank in run.ranks}
        yield "torch's flight recorder", "number", last


def read_ras(text: str) -> dict[int, int]:
    """The operations that each process has begun, by pid, if NCCL's RAS service saw that they differ; nothing if two
    communicators contradict each other about a process. A rank in its answer is one of its communicator."""
    counts: dict[int, int] = {}
    for count, pid in _LAUNCHED.findall(text[: 1 << 20]):
        if counts.setdefault(int(pid), int(count)) != int(count):
            return {}
    return counts


def _recorded(run: RunProcesses, last: Sequence[RecordedCollective]) -> Finding | None:
    """By torch's flight recorder: one number that is another operation on some ranks."""
    is_message = any(item.operation.startswith(("send ", "recv ")) for item in last)
    if is_message or len({(item.group, item.number) for item in last}) != 1:
        return None
    return _odd_of_two(run, {item.rank: f"{item.operation} number {item.number}" for item in last})


def _in_stacks(run: RunProcesses) -> Finding | None:
    """Of ranks that wait for their GPUs the stacks do not say in which collective they are."""
    mains = {rank: process.main for rank, process in run.ranks.items()}
    if any(main.wait.kind == waits.GPU or main.wait.call in _BETWEEN_TWO for main in mains.values()):
        return None
    return _odd_of_two(run, {rank: main.where for rank, main in mains.items()})


def _odd_of_two(run: RunProcesses, where: Mapping[int, str]) -> Finding | None:
    """One rank against the others is the odd one; of one against one both are named; more may be two process groups."""
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
    return Finding("collectives differ", f"the ranks are in different collectives: {'; '.join(told)}", _mains(named))


def _gpu_work(run: RunProcesses, last: Sequence[RecordedCollective]) -> Finding | None:
    """All ranks wait for their GPUs, and none is seen to be behind the others: which one they wait for is shown only by
    a collective that has not started on it."""
    ranks = list(run.ranks.values())
    if any(process.main.wait.kind != waits.GPU or not process.stays for process in ranks):
        return None
    words = "a kernel that does not end, or slow work"
    early = [run.ranks[item.rank] for item in last if item.state == "scheduled"]
    if 0 < len(early) < len(last) == len(ranks) and len({(item.group, item.number) for item in last}) == 1:
        before = f"before {last[0].operation} number {last[0].number}, which the others are in"
        why = f"the GPU of {names(early)} still works {before}: {words}; {waiting(early)}"
        return Finding("kernel", why, _mains(early))
    return Finding("kernel", f"{waiting(ranks)}; none is seen to be behind: {words}", outcome=NOT_DETERMINED)


# -- any processes -----------------------------------------------------------------------------------------------------


def _chain(run: RunProcesses) -> Finding | None:
    """From processes that wait for another one to the one at the end, through children, workers and threads; if all of
    them lead to the same end."""
    ways = [way for way in (run.chain(process.main) for process in run.by_id.values()) if len(way) > 1]
    ways = [way for way in ways if way[0].process is not way[-1].process]
    if len({way[-1].process.id for way in ways}) != 1:
        return None
    way = max(ways, key=len)
    last = way[-1]
    if last.wait.kind in (waits.POLL, waits.CHILD) or last.process.program in CLIENTS:
        return None  # an idle server, or one that waits for what was not seen
    before = [thread for thread in way if thread.process is not last.process][-1]
    does = f"computes: {last.wait.text or last.process.program}" if last.wait.kind == waits.COMPUTES else last.does
    why = f"{before.process.name} waits for {last.process.name}: {before.where}; {last.process.name}: {does}"
    return Finding("child" if before.wait.kind == waits.CHILD else "waits for a process", why, [last])


def _single(run: RunProcesses) -> Finding | None:
    """The only Python process: what it waits for, or computes."""
    pythons = [process for process in run.by_id.values() if process.facts.python and process.main.stack.frames]
    if len(pythons) != 1:
        return None
    process, thread = pythons[0], run.last(pythons[0])
    if thread.wait.frame is None or thread.wait.kind == waits.UNKNOWN:
        return None
    if thread.wait.kind != waits.COMPUTES:
        return Finding(thread.wait.kind, f"{process.name} {thread.does}", [thread])
    if not process.stays:
        return Finding("goes on", f"{process.name} goes on: {thread.wait.text}", outcome=CONTRADICTED)
    why = f"{process.name} computes in {thread.wait.text}, in both looks: an endless loop, or slow work"
    return Finding("computes", why, [thread])


def _mains(processes: Sequence[Process]) -> list[Thread]:
    return [process.main for process in processes]


def _inside(process: Process) -> str:
    return f" ({process.main.wait.text})" if process.main.wait.frame else ""


RULES: tuple[Rule, ...] = (
    _stopped,
    _missing_rank,
    _goes_on,
    _rank_elsewhere,
    _different_collectives,
    _chain,
    _single,
)
