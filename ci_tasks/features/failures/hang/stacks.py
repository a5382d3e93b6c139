"""Stacks of threads, as faulthandler and py-spy write them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass

MAX_TEXT = 1 << 22
_THREADS, _FRAMES = 2000, 300
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')


@dataclass(frozen=True)
class StackFrame:
    """`function` without its class. A native one is of a library; its `file` is that of the library."""

    function: str
    file: str
    line: int | None = None
    native: bool = False

    @property
    def name(self) -> str:
        return self.file.replace("\\", "/").rpartition("/")[2]

    @property
    def place(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True)
class Stack:
    """A thread's frames, the innermost first. `tid` is the kernel's number, None where the writer does not know it;
    `main`: it is the main thread."""

    frames: tuple[StackFrame, ...]
    name: str = ""
    tid: int | None = None
    main: bool = False

    @property
    def python(self) -> tuple[StackFrame, ...]:
        return tuple(frame for frame in self.frames if not frame.native)

    @property
    def natives(self) -> frozenset[str]:
        return frozenset(frame.function for frame in self.frames if frame.native)


def read_faulthandler(text: str) -> list[Stack]:
    """The threads of the last dump in `text`. faulthandler begins with the newest thread: the last is the main one."""
    stacks: list[tuple[str, str, list[StackFrame]]] = []
    seen: set[str] = set()
    for line in text[-MAX_TEXT:].split("\n"):
        if head := _THREAD.match(line):
            if head["id"] in seen or len(stacks) >= _THREADS:  # the next dump begins
                stacks, seen = [], set()
            seen.add(head["id"])
            stacks.append((head["id"], head["name"] or "", []))
        elif stacks and len(stacks[-1][2]) < _FRAMES and (found := _FRAME.match(line)):
            number = int(found["line"]) if found["line"].isdigit() and len(found["line"]) < 9 else None
            stacks[-1][2].append(StackFrame(_last(found["function"]), found["file"], number))
    last = len(stacks) - 1
    return [Stack(tuple(frames), name, main=at == last) for at, (_, name, frames) in enumerate(stacks)]


def read_py_spy(text: str, pid: int) -> list[Stack]:
    """The threads in the output of `py-spy dump --json`, with --native or without; none where it is something else."""
    try:
        threads = json.loads(text) if len(text) <= MAX_TEXT else []
    except (ValueError, RecursionError):
        return []
    return list(_threads(threads[:_THREADS], pid)) if isinstance(threads, list) else []


def _threads(threads: list[Any], pid: int) -> Iterable[Stack]:
    for thread in threads:
        frames = thread.get("frames") if isinstance(thread, dict) else None
        if not isinstance(frames, list):
            continue
        read = tuple(frame for frame in map(_frame, frames[:_FRAMES]) if frame is not None)
        name, tid = str(thread.get("thread_name") or "")[:100], thread.get("os_thread_id")
        tid = tid if type(tid) is int else None
        main = name == "MainThread" if tid is None else tid == pid
        yield Stack(read, name, tid, main)


def _frame(value: Any) -> StackFrame | None:
    if not isinstance(value, dict):
        return None
    file, line = str(value.get("filename") or "")[:1000], value.get("line")
    number = line if type(line) is int and 0 < line < 1 << 30 else None
    native = not file.endswith((".py", ">")) or number is None
    function = str(value.get("name") or "")[:300]
    return StackFrame(function if native else _last(function), file, number, native)


def _last(function: str) -> str:
    """`Queue.get` and `outer.<locals>.inner` as `get` and `inner`: faulthandler knows no more."""
    function = function.strip()[:300]
    return function if function.endswith(">") else function.rpartition(".")[2]
