"""Stacks of threads, as faulthandler writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ci_tasks.agent.quick_dataclass import dataclass

MAX_TEXT = 1 << 22
_THREADS, _FRAMES = 2000, 300
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_STARTED = re.compile(r"(^|/)multiprocessing/process\.py:_bootstrap$")


@dataclass(frozen=True)
class StackFrame:
    """`function` without its class. A native one is of a library, its `file`, and has no line."""

    function: str
    file: str
    line: int | None = None
    native: bool = False

    @property
    def key(self) -> str:
        return f"{self.file}:{self.function}"

    @property
    def name(self) -> str:
        return self.file.replace("\\", "/").rpartition("/")[2]

    @property
    def place(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True)
class Stack:
    """A thread's frames, the innermost first. `tid` is the kernel's number, or faulthandler's own, which is
    none of the kernel's; `main`: it is the main thread; `is_worker`: multiprocessing started its process, and the
    frames of its parent, which a fork copies, are left out."""

    frames: tuple[StackFrame, ...]
    name: str = ""
    tid: int | None = None
    main: bool = False
    is_worker: bool = False

    @property
    def python(self) -> tuple[StackFrame, ...]:
        return tuple(frame for frame in self.frames if not frame.native)


def read_stacks(text: str) -> list[Stack]:
    """The threads of the last dump in `text`, as faulthandler writes them. The last one is the main thread."""
    stacks: list[tuple[re.Match[str], list[StackFrame]]] = []
    seen: set[str] = set()
    for line in text[-MAX_TEXT:].split("\n"):
        if head := _THREAD.match(line):
            if head["id"] in seen or len(stacks) >= _THREADS:  # the next dump begins
                stacks, seen = [], set()
            seen |= {head["id"]} - {"0"}  # py-spy does not know it
            stacks.append((head, []))
        elif stacks and len(stacks[-1][1]) < _FRAMES and (found := _FRAME.match(line)):
            native, function = found["line"] == "???", found["function"]
            number = int(found["line"]) if not native and len(found["line"]) < 9 else None
            stacks[-1][1].append(StackFrame(function if native else _last(function), found["file"], number, native))
    main = stacks[-1][0] if stacks else None
    return [_stack(frames, head, head is main) for head, frames in stacks]


def _stack(frames: Sequence[StackFrame], head: re.Match[str], main: bool) -> Stack:
    bottom = next((at for at, frame in enumerate(frames) if main and _STARTED.search(frame.key)), len(frames))
    return Stack(tuple(frames[:bottom]), head["name"] or "", int(head["id"], 16), main, bottom < len(frames))


def _last(function: str) -> str:
    """`Queue.get` and `outer.<locals>.inner` as `get` and `inner`: faulthandler knows no more."""
    function = function.strip()[:300]
    return function if function.endswith(">") else function.rpartition(".")[2]
