"""Reads what the processes of one machine, or of one container, do: stacks, states, system calls, pipes and sockets.

Two looks some seconds apart, each part with a limit of its own; nothing of a process is changed. It imports nothing of
ours but `procfs`, since the text of both is piped into a container's Python. Prints one JSON object, an `Inspection` of
`facts`.

A signal goes only to a process that has the probe's file open under its own pid and start, and whose SigCgt shows the
handler: any other would be killed by it. py-spy reads the memory of the rest.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .procfs import (
    EVIDENCE_FILE,
    connections,
    is_same,
    lock_waits,
    others,
    read_link,
    read_process,
    read_text,
    send_signal,
    why_forbidden,
)

SECONDS = 40.0  # for everything
BETWEEN = 3.0  # seconds from the first look to the second
SIGNAL_SECONDS = 2.0  # for the stacks to be in the probe's file
PY_SPY_SECONDS = 8.0  # for one process
NATIVE_SECONDS = 12.0  # for the native frames of all
MAX_PROCESSES = 2000
MAX_STACK = 1 << 17  # bytes of the stacks of a process
MAX_STACKS = 6 << 20  # of all
MAX_SOURCE, MAX_SOURCES = 1 << 18, 1 << 21  # bytes of a file, and of all
# System calls that a signal ends, whatever its handler asks for: of poll, sleep and the like Python makes another one,
# a library in C may not; pause and sigsuspend are there to be ended. On x86-64 and on ARM.
_ENDED_BY_SIGNAL = {
    "x86_64": (7, 23, 35, 34, 65, 128, 130, 208, 220, 230, 232, 270, 271, 281, 441),
    "aarch64": (4, 22, 72, 73, 101, 115, 133, 137, 192, 193, 441),
}
_ENDED_FOR_GOOD = {"x86_64": (34, 130), "aarch64": (133,)}
FORBIDDEN = "it may not read the process"
RAS_PORT = 28028
RAS_SECONDS = 6.0
MAX_RAS = 1 << 18
_Json = Dict[str, Any]


class Inspector:
    """`pids` are the processes; None for all here but this one. `py_spy` is a program, or empty for the reason
    `why_no_py_spy`."""

    def __init__(
        self,
        pids: Optional[List[int]],
        py_spy: str,
        why_no_py_spy: str = "",
        between: float = BETWEEN,
        seconds: float = SECONDS,
        native_seconds: float = NATIVE_SECONDS,
    ) -> None:
        self.py_spy, self.between, self.native_seconds = py_spy, between, native_seconds
        self.until = time.monotonic() + seconds
        self.why_no_py_spy = why_no_py_spy or "py-spy is not there"
        self.could_not: List[str] = []
        self.without_native = 0
        self.stack_bytes = MAX_STACKS
        self.pids = (others() if pids is None else pids)[:MAX_PROCESSES]

    def inspect(self) -> _Json:
        began = time.monotonic()
        looks = {pid: process for pid, process in ((pid, read_process(pid)) for pid in self.pids) if process}
        first = self._stacks(looks)
        time.sleep(max(0.0, min(began + self.between, self.until) - time.monotonic()))
        passed = time.monotonic() - began
        again = {pid: read_process(pid) for pid in looks}
        alive = {pid: process for pid, process in looks.items() if is_same(process, again[pid])}
        second = self._stacks(alive)
        native = self._native(alive)
        for pid, process in looks.items():
            self._compare(process, again[pid] if pid in alive else None)
            process["stacks"] = self._texts(first.get(pid), second.get(pid), native.get(pid))
        processes = list(looks.values())
        files = [file for process in processes for stack in process["stacks"] for file in stack.pop("paths")]
        found = {
            "seconds_between": round(passed, 3),
            "machine": os.uname().machine,
            "processes": processes,
            "sockets": connections(processes),
            "locks": lock_waits(set(looks)),
            "sources": self._sources(processes, files),
            "could_not": self.could_not,
        }
        for process in processes:
            process.pop("evidence")
        return found

    # -- stacks ------------------------------------------------------------------------------------------------------

    def _stacks(self, processes: Dict[int, _Json]) -> Dict[int, Tuple[str, str]]:
        """(by, text) of each process: by the probe, and of those that did not answer by py-spy."""
        found = dict(self._by_signal(processes))
        rest = [process for pid, process in processes.items() if pid not in found and process["python"]]
        if rest and not self.py_spy:
            why = "stacks of %d processes that the probe did not reach: %s" % (len(rest), self.why_no_py_spy)
            self.could_not += [why] if why not in self.could_not else []
        elif rest:
            found.update(self._by_py_spy(rest, native=False))
        return found

    def _by_signal(self, processes: Dict[int, _Json]) -> Iterator[Tuple[int, Tuple[str, str]]]:
        waiting: Dict[int, Tuple[int, int]] = {}
        for pid, process in processes.items():
            evidence = process["evidence"]
            if evidence and process["state"] not in ("T", "t", "Z", "X", "D") and not self._would_disturb(process):
                try:
                    handle = os.open(evidence["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:
                    continue
                is_file = stat.S_ISREG(os.fstat(handle).st_mode) and EVIDENCE_FILE.search(read_link(evidence["path"]))
                if is_file and send_signal(pid, process["start"], evidence["signal"]):
                    waiting[pid] = (handle, evidence["size"])
                else:
                    os.close(handle)
        until = min(time.monotonic() + SIGNAL_SECONDS, self.until)
        sizes: Dict[int, int] = {}
        while waiting:
            is_late = time.monotonic() > until
            for pid, (handle, offset) in list(waiting.items()):
                size = os.fstat(handle).st_size
                if (size > offset and sizes.get(pid) == size) or is_late:
                    text = os.pread(handle, MAX_STACK, offset).decode("utf-8", "replace")
                    os.close(handle)
                    del waiting[pid]
                    processes[pid]["evidence"]["size"] = size
                    if "most recent call first" in text:
                        yield pid, ("probe", text)
                    else:
                        processes[pid]["could_not"].append("it did not answer the probe's signal")
                sizes[pid] = size
            time.sleep(0.02)

    def _would_disturb(self, process: _Json) -> bool:
        """Whether the signal would end the system call that the main thread is in, and py-spy can do without."""
        calls = (_ENDED_BY_SIGNAL if self.py_spy else _ENDED_FOR_GOOD).get(os.uname().machine, ())
        words = next(
            (thread["syscall"] for thread in process["threads"] if thread["tid"] == process["pid"]), ""
        ).split()
        return bool(words) and words[0].isdigit() and int(words[0]) in calls

    def _by_py_spy(self, processes: List[_Json], native: bool) -> Iterator[Tuple[int, Tuple[str, str]]]:
        """`native` stops each for some milliseconds; without it the memory is read while the process goes on."""
        until = min(self.until, time.monotonic() + self.native_seconds) if native else self.until
        with ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2))) as pool:
            answers = pool.map(lambda process: self._py_spy(process, native, until), processes)
            for process, (text, why) in zip(processes, answers):  # noqa: B905  # Python 3.8 has no `strict`
                if text:
                    yield process["pid"], ("native" if native else "py-spy", text)
                elif native:
                    self.without_native += 1
                elif why and why not in process["could_not"]:
                    process["could_not"].append(why)

    def _py_spy(self, process: _Json, native: bool, until: float) -> Tuple[str, str]:
        """(text, why not)."""
        held = process["state"] in ("T", "t", "D")  # stopping such a process would never end
        if native and held:
            return "", ""
        modes = [["--native"]] if native else [["--nonblocking"], []][: 1 if held else 2]
        why = ""
        for mode in modes:
            seconds = min(PY_SPY_SECONDS, until - time.monotonic())
            if seconds <= 0.05:
                return "", "no time was left for py-spy"
            argv = [self.py_spy, "dump", "--json", *mode, "--pid", str(process["pid"])]
            text, why = run(argv, seconds)
            if text:
                text = compact(text)
                if text:
                    return text, ""
                why = "py-spy's answer is no JSON"
        return "", "py-spy: " + why + (": " + why_forbidden(process["pid"]) if why == FORBIDDEN else "")

    def _native(self, processes: Dict[int, _Json]) -> Dict[int, Tuple[str, str]]:
        chosen = [process for process in processes.values() if process["python"]]
        if not chosen or not self.py_spy:
            is_said = any(line.endswith(self.why_no_py_spy) for line in self.could_not)
            self.could_not += ["native frames: " + self.why_no_py_spy] if chosen and not is_said else []
            return {}
        chosen.sort(key=lambda process: process["cpu_first"])  # who computes least waits most
        found = dict(self._by_py_spy(chosen, native=True))
        if self.without_native:
            self.could_not.append("native frames of %d of %d processes" % (self.without_native, len(chosen)))
        return found

    def _texts(self, first: Any, second: Any, native: Any) -> List[_Json]:
        found = []
        if first:
            by, text = first
            same = None if second is None or second[0] != by else _frames(by, text) == _frames(by, second[1])
            changed = second is not None and same is False
            found.append(self._text(by, second[1] if changed else text, same, text if changed else ""))
        elif second:
            found.append(self._text(second[0], second[1], None))
        if native:
            found.append(self._text(native[0], native[1], None))
        return [stack for stack in found if stack["text"]]

    def _text(self, by: str, text: str, same: Optional[bool], before: str = "") -> _Json:
        text = text[: min(MAX_STACK, self.stack_bytes)]
        self.stack_bytes -= len(text)
        before = before[: min(MAX_STACK, self.stack_bytes)]
        self.stack_bytes -= len(before)
        return {"by": by, "text": text, "same": same, "before": before, "paths": _paths(by, text)}

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _compare(self, process: _Json, again: Optional[_Json]) -> None:
        """Make the facts of both looks those of the second, with what has changed."""
        tick = float(os.sysconf("SC_CLK_TCK"))
        process["ended"] = again is None
        process["cpu_seconds"] = round((again or process)["cpu_ticks"] / tick, 2)
        process.pop("cpu_ticks")
        process.pop("cpu_first")
        before = {thread["tid"]: thread for thread in process["threads"]}
        for thread in (again or process)["threads"]:
            earlier = before.get(thread["tid"], {})
            keys = ("state", "wchan", "syscall")
            thread["still"] = again is not None and all(thread[key] == earlier.get(key) for key in keys)
            thread["cpu"] = round((thread["ticks"] - earlier.get("ticks", thread["ticks"])) / tick, 3)
        if again is not None:
            process["threads"], process["state"], process["files"] = again["threads"], again["state"], again["files"]
        for thread in process["threads"]:
            thread.pop("ticks", None)

    def _sources(self, processes: List[_Json], paths: List[str]) -> Dict[str, str]:
        """The files of frames outside of the standard library, as far as they can be read here."""
        left, found = MAX_SOURCES, {}
        for path in dict.fromkeys(paths):
            if not os.path.isabs(path) or not path.endswith(".py") or "/lib/python" in path or left <= 0:
                continue
            text = read_text(path, min(MAX_SOURCE, left) + 1)
            if text and len(text) <= min(MAX_SOURCE, left):
                found[path] = text
                left -= len(text)
        return found


# -- py-spy ------------------------------------------------------------------------------------------------------------


def run(argv: List[str], seconds: float) -> Tuple[str, str]:
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=not argv[0].startswith("/proc/self/fd/"),
        )
    except OSError as error:
        return "", "%s" % error.strerror
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:  # what it waits for holds it too
            pass
        return "", "no answer within %.0f s" % seconds
    if process.returncode:
        if re.search(rb"permission denied|operation not permitted", err, re.I):
            return "", FORBIDDEN
        lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("Error:", "Reason:"))] or lines[-1:]
        return "", "; ".join(errors)[:200] or "exit code %d" % process.returncode
    return out[: MAX_STACK * 8].decode("utf-8", "replace"), ""


def compact(text: str) -> str:
    try:
        threads = [_compact_thread(thread) for thread in json.loads(text)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""
    return json.dumps(threads, separators=(",", ":"))


def _compact_thread(thread: Any) -> _Json:
    values = {key: thread.get(key) for key in ("thread_id", "thread_name", "os_thread_id")}
    frames = thread.get("frames") or []
    if len(frames) > 120:
        frames = frames[:100] + frames[-20:]
    values["frames"] = [
        {"name": frame.get("name"), "filename": frame.get("filename"), "line": frame.get("line")} for frame in frames
    ]
    return values


def _frames(by: str, text: str) -> str:
    if by == "probe":
        lines = (line for line in text.split("\n") if line.startswith(("  File", "Thread", "Current")))
        return "\n".join(line.replace("Current thread", "Thread") for line in lines)
    try:
        return json.dumps([[thread["thread_id"], thread["frames"]] for thread in json.loads(text)])
    except (ValueError, KeyError, TypeError):
        return text


def _paths(by: str, text: str) -> List[str]:
    pattern = r'^  File "([^"\n]+)", line' if by == "probe" else r'"filename":"((?:[^"\\\n]|\\.)+)"'
    return list(dict.fromkeys(re.findall(pattern, text, re.M)))


# -- NCCL --------------------------------------------------------------------------------------------------------------


def ask_ras(seconds: float = RAS_SECONDS, port: int = RAS_PORT) -> Tuple[str, str]:
    """(NCCL's own account of its communicators, why there is none)."""
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as link:
            link.settimeout(0.5)
            until = time.monotonic() + seconds
            for line in ("client protocol 2", "timeout 5", "verbose status"):
                link.sendall(line.encode() + b"\n")
            while time.monotonic() < until and len(data) < MAX_RAS:
                try:
                    chunk = link.recv(1 << 16)
                except socket.timeout:
                    if b"Communicators" in data or b"ERROR" in data:
                        break  # it keeps the connection open
                    continue
                if not chunk:
                    break
                data += chunk
    except OSError as error:
        if not data:
            return "", "nothing listens on 127.0.0.1:%d (%s)" % (port, error.strerror or error)
    return data[:MAX_RAS].decode("utf-8", "replace"), "" if data else "no answer"


# -- in a container ----------------------------------------------------------------------------------------------------


def program_in_memory(content: bytes) -> Tuple[str, str]:
    """(the path of a program that lies on no disk, why there is none)."""
    if not content:
        return "", ""
    if not hasattr(os, "memfd_create"):
        return "", "py-spy could not be put there: Python %d.%d has no memfd_create" % sys.version_info[:2]
    try:
        handle = os.memfd_create("py-spy", 0)
        os.set_inheritable(handle, True)
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fchmod(handle, 0o700)
    except OSError as error:
        return "", "py-spy could not be put there: memfd_create: %s" % error.strerror
    return "/proc/self/fd/%d" % handle, ""


def main(options: _Json, py_spy: bytes) -> None:
    path, why_not = program_in_memory(py_spy)
    inspector = Inspector(
        options.get("pids"),
        path,
        why_not or options.get("why_no_py_spy", ""),
        options.get("between", BETWEEN),
        options.get("seconds", SECONDS),
    )
    found = inspector.inspect()
    if options.get("ras"):
        found["ras"], why = ask_ras()
        found["could_not"] += ["NCCL: " + why] if why else []
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
