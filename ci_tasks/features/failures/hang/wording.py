"""How processes, ranks and what they wait for are called in a reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.gpus.lock_files import numbered
from ci_tasks.features.failures.hang import waits
from ci_tasks.features.failures.hang.processes import Process, RunProcesses, ThreadState


def place_of(process: Process) -> tuple[str, str]:
    wait = process.main.wait
    return (wait.call if wait.kind == waits.COLLECTIVE else wait.kind, wait.frame.place if wait.frame else "")


def describe(process: Process, thread: ThreadState) -> str:
    wait = thread.wait
    if wait.frame is None:
        return wait.text or _state(process)
    named = "" if thread is process.main else f"{thread_name(thread)} "
    word = "computes in" if wait.kind == waits.COMPUTES else "is in" if wait.kind in (waits.C_CODE, "") else "waits in"
    return f"{named}{word} {wait.text}"


def where(process: Process) -> str:
    return process.main.wait.text or _state(process)


def _state(process: Process) -> str:
    thread = process.main.kernel
    channel = f", {thread.wchan}" if thread and thread.wchan else ""
    return f"state {process.facts.state}{channel}"


def collective(run: RunProcesses, waiting: Sequence[Process]) -> str:
    """`all_reduce number 412 at train.py:88`, where torch's recorder knows the number; of what waits for its GPU,
    `all_reduce number 412 (synchronize at train.py:90)`."""
    text = where(waiting[0])
    ranks = {process.rank for process in waiting}
    recorded = {(item.operation, item.number) for item in run.facts.collectives if item.rank in ranks}
    wait = waiting[0].main.wait
    if len(recorded) != 1:
        return text
    ((operation, number),) = recorded
    if wait.kind == waits.GPU and operation:
        return f"{operation} number {number} ({text})"
    if wait.kind == waits.COLLECTIVE:
        return f"{wait.call} number {number}{text[len(wait.call) :]}"
    return text


def how_it_ended(how: str) -> str:
    return "it ended by itself" if how else "it was killed, or ended without Python's exit"


def thread_name(thread: ThreadState) -> str:
    name = thread.stack.name if thread.stack else ""
    return (
        f"thread {name}"
        if name and name != "MainThread"
        else "the main thread"
        if thread.stack and thread.stack.main
        else "a thread"
    )


def names(processes: Sequence[Process]) -> str:
    numbers = sorted(process.rank for process in processes if process.rank is not None)
    others = [process.name for process in processes if process.rank is None]
    shown = others[:4] + ([f"{len(others) - 4} more"] if len(others) > 4 else [])
    return ", ".join([*([numbered("rank", numbers)] if numbers else []), *shown])


def with_where(why: str, processes: Sequence[Process]) -> str:
    wait = processes[0].main.wait
    return f"{why} ({wait.text})" if wait.frame else why


def waiting_in(processes: Sequence[Process]) -> str:
    return f"{names(processes)} {wait_or_waits(processes)} in {where(processes[0])}"


def be(processes: Sequence[Process]) -> str:
    return "is" if len(processes) == 1 else "are"


def wait_or_waits(processes: Sequence[Process]) -> str:
    return "waits" if len(processes) == 1 else "wait"


def it_or_them(processes: Sequence[Process]) -> str:
    return "it" if len(processes) == 1 else "them"
