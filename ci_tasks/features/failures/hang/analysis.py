"""From what was seen of a run's processes to why it hangs. Pure.

The rules are asked one after the other, the surest first; the first that is shown is the answer. A rule names a
culprit only where what it waits for, or why it cannot go on, was seen: otherwise the answer is "not determined", with
the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone

from ci_tasks.agent.hang.facts import HangFacts
from ci_tasks.features.failures.hang import waits
from ci_tasks.features.failures.hang.finding import SHOWN, Finding, mains_of
from ci_tasks.features.failures.hang.processes import (
    BUSY,
    CLIENTS,
    Process,
    RunProcesses,
    ThreadState,
    processes_of,
)
from ci_tasks.features.failures.hang.rank_rules import WAITS_FOR_RANKS, missing_rank, odd_ranks
from ci_tasks.features.failures.hang.wait_graph import follow, holder_of, last_of, targets_of, thread_at_end
from ci_tasks.features.failures.hang.wording import (
    be,
    describe,
    it_or_them,
    names,
    thread_name,
    where,
    with_where,
)
from ci_tasks.records import Hang, HangCulprit, HangGroup

CONTRADICTED, NOT_DETERMINED = "contradicted", "not determined"
EXIT_CODES = {SHOWN: 0, CONTRADICTED: 1, NOT_DETERMINED: 4}
_MAX_GROUPS = 40


Rule = Callable[[RunProcesses], "Finding | None"]


def analyse_hang(facts: HangFacts) -> Hang:
    run = processes_of(facts)
    found = next((finding for finding in (rule(run) for rule in _RULES) if finding), None)
    groups = tuple(_groups(run))
    if found is None:
        seen = "; ".join(f"{group.who}: {group.where}" for group in groups[:3]) or "no process was seen"
        found = Finding("", f"not determined; {seen}", (), NOT_DETERMINED)
    return Hang(
        outcome=found.outcome,
        kind=found.kind,
        reason=found.reason,
        culprits=tuple(_culprit(*culprit) for culprit in found.culprits),
        groups=groups[:_MAX_GROUPS],
        could_not=facts.could_not[:100],
        taken_at=_iso(facts.taken_at),
        seconds=facts.seconds,
        trigger=facts.reason,
    )


# -- the rules ---------------------------------------------------------------------------------------------------------


def _stopped(run: RunProcesses) -> Finding | None:
    found = [process for process in run.by_id.values() if process.facts.state == "T"]
    if not found:
        return None
    why = f"{names(found)} {be(found)} stopped: SIGCONT lets {it_or_them(found)} go on"
    return Finding("stopped", with_where(why, found), mains_of(found))


def _uninterruptible(run: RunProcesses) -> Finding | None:
    found = [
        (process, thread)
        for process in run.by_id.values()
        for thread in process.facts.threads
        if thread.state == "D" and thread.still
    ]
    if not found:
        return None
    processes = list({process.id: process for process, _ in found}.values())
    channel = next((thread.wchan for _, thread in found if thread.wchan), "")
    why = f"{names(processes)} {be(processes)} in uninterruptible sleep (state D{f', {channel}' if channel else ''})"
    return Finding(
        "uninterruptible", with_where(f"{why}: a disk, a file system or a driver", processes), mains_of(processes)
    )


def _file_locks(run: RunProcesses) -> Finding | None:
    """Locks on files: the kernel says who has them."""
    holders = {(lock.place, lock.waiter): (lock.place, lock.holder) for lock in run.facts.locks}
    for first in holders:
        way = [first]
        while way[-1] in holders and holders[way[-1]] not in way:
            way.append(holders[way[-1]])
        processes = [run.by_id[id] for id in way if id in run.by_id]
        if way[-1] in holders and len(processes) == len(way) and holders[way[-1]] == first:
            whys = [f"{process.name} waits for a lock on a file: {process.main.wait.text}" for process in processes]
            return Finding(
                "lock cycle", f"each has the file lock that the next waits for: {'; '.join(whys)}", mains_of(processes)
            )
    for waiter, holder in holders.items():
        if holder in run.by_id and holder not in holders and waiter in run.by_id:
            process = run.by_id[holder]
            last = last_of(run, process)
            why = (
                f"{run.by_id[waiter].name} waits for a file lock that {process.name} has, which is in {where(process)}"
            )
            return (
                _ending(last, "file lock", why)
                if last is not process
                else Finding("file lock", why, mains_of([process]))
            )
    return None


def _lock_cycle(run: RunProcesses) -> Finding | None:
    """Locks that are globals of a module: the text of the functions says who has them."""
    for process in run.by_id.values():
        blocked = [thread for thread in process.threads if thread.locks.wants and thread.wait.kind == waits.LOCK]
        for first in blocked:
            way = [first]
            while True:
                holder = holder_of(process, way[-1])
                if holder is None or holder not in blocked:
                    break
                if holder is first:
                    return _cycle(process, way)
                if holder in way:
                    break
                way.append(holder)
    return None


def _cycle(process: Process, way: Sequence[ThreadState]) -> Finding:
    if len(way) == 1:
        why = f"{process.name} takes a lock that it has already: {way[0].wait.text}"
        return Finding("lock cycle", why, [(process, way[0])])
    parts = []
    for thread in way:
        wants = thread.locks.wants[1] if thread.locks.wants else ""
        holds = ", ".join(sorted(name for _, name in thread.locks.holds))
        parts.append(f"{thread_name(thread)} has {holds} and waits for {wants} ({thread.wait.text})")
    return Finding(
        "lock cycle", f"lock cycle in {process.name}: {'; '.join(parts)}", [(process, thread) for thread in way]
    )


def _forked_lock(run: RunProcesses) -> Finding | None:
    """A forked process has one thread: whoever had the lock is not in it."""
    for process in run.by_id.values():
        stack = process.main.stack
        is_copy = process.facts.forked or (stack and any(f.name == "popen_fork.py" for f in stack.python))
        if is_copy and len(process.facts.threads) == 1 and process.main.wait.kind == waits.LOCK:
            why = f"{process.name} was forked while another thread had the lock that it waits for"
            return Finding("fork with a held lock", f"{why}: {process.main.wait.text}", mains_of([process]))
    return None


def _import_deadlock(run: RunProcesses) -> Finding | None:
    for process in run.by_id.values():
        waiting = [thread for thread in process.threads if thread.wait.kind == waits.IMPORT]
        importing = [
            thread
            for thread in process.threads
            if thread not in waiting and thread.stack and any(f.function == "exec_module" for f in thread.stack.python)
        ]
        if waiting and len(importing) == 1 and importing[0].wait.kind in (waits.JOIN, waits.CONDITION, waits.QUEUE):
            why = f"import deadlock in {process.name}: a thread waits for a module that is being imported"
            why += f" ({waiting[0].wait.text}), and the import waits: {importing[0].wait.text}"
            return Finding("import deadlock", why, [(process, importing[0]), (process, waiting[0])])
    return None


def _goes_on(run: RunProcesses) -> Finding | None:
    """Silence of the log alone is no stall: somebody may compute. Ranks that wait for others may do that with all of a
    processor, so what counts is who uses it and does not wait."""
    if run.facts.reason != "stall":
        return None
    busy = [process for process in run.by_id.values() if _computes(process) or _has_computed(process)]
    moving = [process for process in busy if not process.stays or not _computes(process)]
    if moving:
        why = f"the log is silent, but {names(moving)} {'goes' if len(moving) == 1 else 'go'} on: {where(moving[0])}"
        return Finding("goes on", why, (), CONTRADICTED)
    if busy:
        inside = f" in {where(busy[0])}, in both looks" if busy[0].main.wait.frame else ""
        why = f"{names(busy)} {'computes' if len(busy) == 1 else 'compute'}{inside}"
        return Finding("computes", f"not determined; {why}: slow work, or an endless loop", (), NOT_DETERMINED)
    return None


def _computes(process: Process) -> bool:
    return any(thread.wait.kind == waits.COMPUTES for thread in process.threads)


def _has_computed(process: Process) -> bool:
    """Since the look before in the same silence, and is not in a collective, where it would do so too."""
    busy = process.facts.busy_since
    return busy is not None and busy >= BUSY and process.main.wait.kind not in WAITS_FOR_RANKS


def _chain(run: RunProcesses) -> Finding | None:
    """From processes that wait for another one to the one at the end, through pipes, sockets, children and threads;
    where all of them lead to the same end."""
    ways = [follow(run, process) for process in run.by_id.values() if targets_of(run, process)]
    ways = [(last, way) for last, way in ways if last is None or len(way) > 1]
    ends = {last.id if last else min(process.id for process in way) for last, way in ways}
    if len(ends) != 1:
        return None
    last, way = max(ways, key=lambda item: len(item[1]))
    if last is None:
        return _circle(way)
    before = way[-2]
    return _ending(last, _link_kind(before), f"{before.name} waits for {last.name}: {where(before)}")


def _link_kind(before: Process) -> str:
    wait = before.main.wait
    if wait.kind == waits.WRITE:
        return "pipe full"
    return "child" if wait.kind == waits.CHILD else "waits for a process"


def _circle(way: Sequence[Process]) -> Finding:
    """Each waits for the next."""
    parts = [f"{process.name} in {where(process)}" for process in way]
    kind = "pipe full" if any(process.main.wait.kind == waits.WRITE for process in way) else "wait cycle"
    return Finding(
        kind,
        f"{'a pipe is full: ' if kind == 'pipe full' else ''}each waits for the next: {'; '.join(parts)}",
        mains_of(way),
    )


def _ending(last: Process, kind: str, why: str) -> Finding | None:
    """None where nothing is shown of the last one: an idle server, or a client of what was not seen."""
    thread = thread_at_end(last)
    if thread is None or thread.wait.kind == waits.POLL or last.program in CLIENTS:
        return None
    if thread.wait.kind == waits.COMPUTES:
        return Finding(kind, f"{why}; {last.name} computes: {thread.wait.text or last.program}", [(last, thread)])
    return Finding(kind, f"{why}; {last.name}: {describe(last, thread)}", [(last, thread)])


def _single(run: RunProcesses) -> Finding | None:
    pythons = [process for process in run.by_id.values() if process.facts.python and process.main.stack]
    if len(pythons) != 1:
        return None
    process = pythons[0]
    thread = thread_at_end(process)
    if thread is None or thread.wait.frame is None:
        return None
    if thread.wait.kind == waits.COMPUTES:
        if not process.stays:
            return Finding("goes on", f"{process.name} goes on: {thread.wait.text}", (), CONTRADICTED)
        why = f"{process.name} computes in {thread.wait.text}, in both looks: an endless loop, or slow work"
        return Finding("computes", why, [(process, thread)])
    if thread.wait.kind == waits.UNKNOWN:
        return None
    return Finding(thread.wait.kind or "waits", f"{process.name} {describe(process, thread)}", [(process, thread)])


_RULES: tuple[Rule, ...] = (
    _stopped,
    _uninterruptible,
    _lock_cycle,
    _forked_lock,
    _import_deadlock,
    _file_locks,
    missing_rank,
    _goes_on,
    odd_ranks,
    _chain,
    _single,
)


# -- the facts of a finding --------------------------------------------------------------------------------------------


def _groups(run: RunProcesses) -> Iterator[HangGroup]:
    """Processes with equal stacks of the main thread, ranks first and the largest group first."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for process in run.by_id.values():
        found.setdefault((process.rank is None, *_stack_key(process)), []).append(process)
    for key, group in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0].id)):
        stack = group[0].main.stack
        frames = tuple(f"{f.function} {f.file}:{f.line}" for f in stack.python[:12]) if stack else ()
        who = names(group) if key[0] is False or len(group) <= 4 else f"{len(group)} processes {group[0].program}"
        yield HangGroup(who, where(group[0]), frames, len(group))


def _stack_key(process: Process) -> tuple[object, ...]:
    stack, wait = process.main.stack, process.main.wait
    if stack is None:
        return (process.program, process.facts.state, wait.kind)
    own = tuple((f.function, f.file, f.line) for f in stack.python if not waits.is_library(f))
    return (wait.kind, wait.call, own)


def _culprit(process: Process, thread: ThreadState) -> HangCulprit:
    frame = thread.wait.frame
    return HangCulprit(
        who=process.name,
        where=describe(process, thread),
        pid=process.facts.pid,
        rank=process.rank,
        function=frame.function if frame else "",
        file=frame.file if frame else "",
        line=frame.line if frame else None,
    )


def _iso(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None
