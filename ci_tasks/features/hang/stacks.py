"""Stacks of threads, as faulthandler writes them. Pure."""

from __future__ import annotations

import re

from ci_tasks.agent.quick_dataclass import dataclass

MAX_TEXT = 1 << 22
_THREADS, _FRAMES = 2000, 300
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[([^\]]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "([^"]*)", line (\d{1,8}) in (.{1,300})')
_STARTED = re.compile(r"(^|/)multiprocessing/process\.py:_bootstrap$")


@dataclass(frozen=True)
class StackFrame:
    """`function` without its class."""

    function: str
    file: str
    line: int | None = None

    @property
    def key(self) -> str:
        return f"{self.file}:{self.function}"

    @property
    def place(self) -> str:
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class Stack:
    """A thread's frames, the innermost first. `is_worker`: it is the main thread of a process that multiprocessing
    started, without the frames of its parent, which a fork copies."""

    frames: tuple[StackFrame, ...]
    name: str = ""
    is_worker: bool = False


def read_stacks(text: str) -> list[Stack]:
    """The threads of the last dump in `text`. The last one is the main thread."""
    stacks: list[tuple[str, list[StackFrame]]] = []
    seen: set[str] = set()
    for line in text[-MAX_TEXT:].split("\n"):
        if head := _THREAD.match(line):
            if head[1] in seen or len(stacks) >= _THREADS:  # the next dump begins
                stacks, seen = [], set()
            seen.add(head[1])
            stacks.append((head[2] or "", []))
        elif stacks and len(stacks[-1][1]) < _FRAMES and (found := _FRAME.match(line)):
            stacks[-1][1].append(StackFrame(_last(found[3].strip()), found[1], int(found[2])))
    found_stacks = [Stack(tuple(frames), name) for name, frames in stacks]
    return [*found_stacks[:-1], *map(_without_start, found_stacks[-1:])]


def _without_start(main: Stack) -> Stack:
    start = next((at for at, frame in enumerate(main.frames) if _STARTED.search(frame.key)), None)
    return main if start is None else Stack(main.frames[:start], main.name, is_worker=True)


def _last(function: str) -> str:
    """`Queue.get` and `outer.<locals>.inner` as `get` and `inner`: faulthandler knows no more."""
    return function if function.endswith(">") else function.rpartition(".")[2]
