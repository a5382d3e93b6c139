"""Which process waits for which, through children, pipes, sockets, locks and threads, as far as it was seen. Pure."""

from __future__ import annotations

from ci_tasks.features.failures.hang import waits
from ci_tasks.features.failures.hang.processes import Process, RunProcesses, ThreadState

_MAX_STEPS = 20  # from one process that waits to the next


def follow(run: RunProcesses, first: Process) -> tuple[Process | None, list[Process]]:
    """(the end, the way there); without an end the way is a circle. It goes on where there is one process to go to."""
    way = [first]
    while len(way) < _MAX_STEPS:
        targets = targets_of(run, way[-1])
        if len(targets) != 1:
            return way[-1], way
        if targets[0] in way:
            return None, way[way.index(targets[0]) :]
        way.append(targets[0])
    return way[-1], way


def last_of(run: RunProcesses, process: Process) -> Process:
    last, way = follow(run, process)
    return last or way[-1]


def targets_of(run: RunProcesses, process: Process) -> list[Process]:
    """The processes that its main thread waits for; none where that is not seen."""
    thread = thread_at_end(process)
    if thread is None:
        return []
    wait = thread.wait
    if wait.kind == waits.CHILD:
        children = [child for child in run.children(process) if child.facts.state != "Z"]
        return [child for child in children if not _is_tracker(child)]
    file = process.file(wait.fd) if wait.kind in (waits.READ, waits.WRITE) else None
    if file is None:
        return []
    if file.target.startswith("socket:"):
        return _peers(run, file.inode)
    ends = [
        other
        for other in run.by_id.values()
        if other is not process
        and any(_is_end(item, file, wait.kind) for item in other.facts.files if item.inode == file.inode)
    ]
    return _without_ancestors_copies(run, process, ends)


def _is_end(item: object, file: object, kind: str) -> bool:
    return bool(getattr(item, "reads" if kind == waits.WRITE else "writes"))


def _without_ancestors_copies(run: RunProcesses, process: Process, ends: list[Process]) -> list[Process]:
    """Forked siblings inherit ends that they do not use: of several, the parent is the one that made the pipe."""
    parent = [end for end in ends if end.facts.pid == process.facts.ppid]
    return parent if len(ends) > 1 and parent else ends


def _peers(run: RunProcesses, inode: int) -> list[Process]:
    own = next((socket for socket in run.facts.sockets if socket.inode == inode), None)
    if own is None:
        return []
    other = [s.inode for s in run.facts.sockets if (s.net, s.local, s.remote) == (own.net, own.remote, own.local)]
    return [
        p for p in run.by_id.values() if any(f.inode in other for f in p.facts.files if f.target.startswith("socket:"))
    ]


def _is_tracker(process: Process) -> bool:
    return any("resource_tracker" in word or "forkserver" in word for word in process.facts.argv)


def thread_at_end(process: Process) -> ThreadState | None:
    """The main thread, or the one that it waits for, where that is shown: the only other one, or the one that has the
    lock. None where several could be meant."""
    thread = process.main
    for _ in range(_MAX_STEPS):
        if thread.wait.kind == waits.LOCK and thread.locks.wants:
            holder = holder_of(process, thread)
            if holder is None or holder is thread:
                return thread
            thread = holder
        elif thread.wait.kind == waits.JOIN:
            others = [
                other
                for other in process.others
                if other is not thread and other.stack and waits.user_frame(other.stack)
            ]
            if len(others) != 1:
                return thread
            thread = others[0]
            if thread.wait.kind == waits.JOIN:
                return thread
        else:
            return thread
    return thread


def holder_of(process: Process, thread: ThreadState) -> ThreadState | None:
    holders = [other for other in process.threads if thread.locks.wants in other.locks.holds]
    return holders[0] if len(holders) == 1 else None
