"""Python's tracebacks in a log where many ranks and actors write at once: their frames, their ends, and how they are
chained."""

from __future__ import annotations

import re
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass

HEADER = "Traceback (most recent call last)"
_HEADERS = (HEADER, f"Exception Group {HEADER}")
_FRAME = re.compile(r'^[\s|+-]*File "([^"]{1,500})", line (\d+), in (.*)|^[\s|]*File "([^"]{1,500})", line (\d+)$')
_CODE = re.compile(r"^\s|^[\^~]+$|^\.\.\.|^\[Previous line repeated|^[|+] ")
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,150}(?:\([\w., ]{1,80}\))?)(?:: ?(?P<message>.*))?$")
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_MAX_CODE = 500  # characters of a source line
_MOST_CALLS = 1000
_MAX_GAP = 60  # lines of others between two of one traceback
_TASK_ERROR = "RayTaskError"
_GROUP = "ExceptionGroup"
_TYPE = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|Expired|Failure|Group)$")
_OLD_TYPE = re.compile(r"\.(?:\w*error|timeout)$")  # socket.timeout, struct.error
_COMPOUND = re.compile(r"^[A-Z]+[a-z\d]+[A-Z]")  # OutOfResources, but not Epoch
_NO_TYPE = ("INFO", "DEBUG", "WARNING", "ERROR", "None", "True", "False", "File", "Note", "Warning")


@dataclass
class TracebackFrame:
    """A frame: `code` is the source line that Python prints below it, "" if it printed none."""

    path: str
    line: int
    function: str
    code: str = ""


@dataclass
class Traceback:
    """One that is being read. `calls` are its frames, outermost first; `chain` is shared by tracebacks that Python
    printed as raised during the handling of another, `depth` its place there; `ignored` if it was raised in a
    destructor, `survived` if it was logged and the process continued."""

    origin: str
    chain: int
    depth: int = 0
    ignored: bool = False
    survived: bool = False
    calls: list[TracebackFrame] = field(default_factory=list)
    open: bool = True
    linked: bool = False
    quiet: int = 0
    indent: str = ""

    @property
    def frames(self) -> list[str]:
        """`path:function` of each call."""
        return [f"{call.path}:{call.function}" for call in self.calls]


@dataclass(frozen=True)
class TracebackEnd:
    """The last line of a traceback: its exception."""

    type: str
    message: str
    traceback: Traceback


class Tracebacks:
    """The tracebacks of one log, by who prints them. What comes within `ignoring` lines is said to be ignored;
    `surviving`: the traceback that the next line begins is only logged."""

    def __init__(self) -> None:
        self._last: dict[str, Traceback] = {}
        self._latest: Traceback | None = None
        self._chains = 0
        self.ignoring = 0
        self.surviving = False

    @property
    def waiting(self) -> bool:
        """Whether a line of one may come."""
        return any(traceback.quiet < (_MAX_GAP if traceback.open else 8) for traceback in self._last.values())

    def feed(self, origin: str, text: str) -> TracebackEnd | bool:
        """An End if the line ends a traceback; else whether it is a part of one."""
        for traceback in self._last.values():
            traceback.quiet += 1
        self.ignoring = max(0, self.ignoring - 1)
        if HEADER in text:
            begun, bare = self._begin(origin), text.lstrip()
            begun.indent = text[: len(text) - len(bare)] if bare.startswith(_HEADERS) else ""
            return bare.startswith(_HEADERS)
        current = self._of(origin)
        if (current is None or not current.open) and _FRAME.match(text):
            current = self._begin(origin)  # its header was cut off
        if current is None:
            return False
        text = text.removeprefix(current.indent)
        if _CHAINED.match(text):
            current.linked = True
            return True
        return self._inside(current, text) if current.open else False

    def _begin(self, origin: str) -> Traceback:
        before = self._last.get(origin)
        if before is not None and before.linked:
            traceback = Traceback(origin, before.chain, before.depth + 1, before.ignored, before.survived)
        else:
            self._chains += 1
            traceback = Traceback(origin, self._chains, ignored=self.ignoring > 0, survived=self.surviving)
        self.surviving = False
        self._last[origin] = self._latest = traceback
        if len(self._last) > 200:  # a thousand ranks; the oldest have long ended
            del self._last[next(iter(self._last))]
        return traceback

    def _of(self, origin: str) -> Traceback | None:
        traceback = self._last.get(origin)
        # The header has a rank or a time, its lines have none.
        if not origin and (traceback is None or not traceback.open) and self._latest is not None and self._latest.open:
            traceback = self._latest
        return traceback if traceback is not None and traceback.quiet <= _MAX_GAP else None

    def _inside(self, current: Traceback, text: str) -> TracebackEnd | bool:
        if match := _FRAME.match(text):
            if not current.calls:  # its header may have been glued to something, or be missing
                current.indent += text[: max(0, len(text) - len(text.lstrip()) - 2)]
            path, function = (match[1], match[3]) if match[1] else (match[4], "")
            current.calls.append(TracebackFrame(path, int((match[2] or match[5])[:9]), function))
            del current.calls[_MOST_CALLS // 2 : -_MOST_CALLS // 2]
            current.quiet = 0
            return True
        if not text or _CODE.match(text):
            _add_code(current, text)
            current.quiet = 0
            return True
        match = EXCEPTION.match(text)
        if match is None or not _is_type(match["type"], at_once=current.quiet == 1):
            return False
        if not current.calls and "Error" not in match["type"]:
            return False
        current.open, current.quiet = False, 0
        end = TracebackEnd(match["type"], match["message"] or "", current)
        # What the task raised follows at once, and is the reason of this.
        current.linked = _TASK_ERROR in match["type"] or match["type"].endswith(_GROUP)
        if _TASK_ERROR in match["type"]:
            self._begin(current.origin)
        return end


def _add_code(traceback: Traceback, text: str) -> None:
    """Keep the line below a frame, if it is the frame's code and not a mark below it."""
    code = text.strip(" \t|")
    if traceback.calls and not traceback.calls[-1].code and code.strip("^~. ") and len(code) <= _MAX_CODE:
        traceback.calls[-1].code = code


def _is_type(name: str, at_once: bool) -> bool:
    """Whether an exception's type may be called so. Python names the module of a type, except for its own types and a
    script's; `at_once`, below the code that raised it, other names are believed too."""
    last = name.split("(")[0].rsplit(".", 1)[-1]
    if last in _NO_TYPE or len(last) <= 3 or _OLD_TYPE.search(name):
        return bool(_OLD_TYPE.search(name))
    return last[:1].isupper() and bool("." in name or _TYPE.search(last) or (at_once and _COMPOUND.match(last)))
