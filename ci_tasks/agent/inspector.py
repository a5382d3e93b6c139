"""Reads what the processes of one machine, or of one container, do: stacks, states and where the kernel holds them.

Two looks some seconds apart. The text of this module is given to a Python there (`collect`), so it imports nothing of
ours. It reads a JSON list of pids, or null for all processes, and prints an object with fields of `hang.HangFacts`.

A signal makes the probe of a process write its stacks. It is sent only to a process that has the probe's file open
under its own pid and start, and whose SigCgt shows the handler: any other would be killed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Optional, Tuple

BETWEEN = 3.0  # seconds from the first look to the second
SIGNAL_SECONDS = 1.0  # for the probe to write its stacks
MAX_PROCESSES, MAX_THREADS = 2000, 1000  # of all, and of a process
MAX_STACKS, MAX_ALL_STACKS = 1 << 17, 6 << 20  # characters of a process, and of all
MAX_SOURCE, MAX_LINES = 1 << 18, 5000  # characters of a file, and lines of all
NO_NCCL = "NCCL's own status: no NCCL answers, which is normal for a job without NCCL"
_EVIDENCE_FILE = r"/%d-(?:%d|0)-[0-9a-f]{8}\.jsonl$"  # pid and start
_SIGNAL = re.compile(r'\{"event": "start", .*"signal": (\d\d), "descriptor": (\d+)\}')
# Functions of the kernel that a signal ends for good, as pause, or when a part is written: Python 3.11 loses the rest
# of a text then. Other calls are repeated.
_NOT_INTERRUPTED = re.compile("write|send|splice|pause|sigsuspend")
_VARIABLES = re.compile(r"\0(\w*RANK|\w*WORLD_SIZE|PMI_SIZE|TORCH_\w+_FILE)=([^\0]{0,500})")
_TICK = float(os.sysconf("SC_CLK_TCK"))
_Json = Dict[str, Any]


def main(pids: Optional[List[int]]) -> None:
    found = inspect(processes_here() if pids is None else pids)
    try:
        found["ras"] = {"": ask_ras()}
    except OSError as error:
        is_absent = isinstance(error, ConnectionRefusedError)
        found["could_not"].append(NO_NCCL if is_absent else "no answer from NCCL: %s" % error)
    json.dump(found, sys.stdout)


def inspect(pids: List[int], between: float = BETWEEN) -> _Json:
    """The facts of processes that are there in both looks."""
    began, could_not = time.monotonic(), []
    if len(pids) > MAX_PROCESSES:
        could_not.append("%d of %d processes are not inspected" % (len(pids) - MAX_PROCESSES, len(pids)))
    first = _read_all(pids[:MAX_PROCESSES])
    before = _stacks(first)
    time.sleep(max(0.0, began + between - time.monotonic()))
    passed = max(0.1, time.monotonic() - began)
    processes = {pid: now for pid, now in _read_all(first).items() if now["start"] == first[pid]["start"]}
    after = _stacks(processes)
    left = MAX_ALL_STACKS
    for pid, process in processes.items():
        earlier, text = first[pid], after.get(pid, "")
        for name in ("cpu", "main_cpu"):
            process[name] = round((process[name] - earlier[name]) / passed, 3)
        process["state"] = process["state"] if process["state"] == earlier["state"] else "R"
        process["held"] = [held[0] for tid, held in process["held"].items() if held == earlier["held"].get(tid)]
        same = _functions(text) == _functions(before[pid]) if text and pid in before else None
        process.update(stacks=text[:left], same_stacks=same)
        left = max(0, left - len(text))
        if process["python"] and not text:
            could_not.append("stacks of pid %d: its probe did not answer" % pid)
    every = list(processes.values())
    lines = _lines("\n".join(process["stacks"] for process in every))
    return {"processes": every, "lines": lines, "could_not": could_not}


def _functions(text: str) -> List[str]:
    """What is compared of stacks: the program's own functions in the main thread. Lines of a loop may differ."""
    main = text.rpartition("(most recent call first):")[2]
    return re.findall(r'^  File "(?!.*(?:/lib/python|-packages/)|<frozen)[^"]*", line \d+ in (.*)', main, re.M)


def _lines(stacks: str) -> Dict[str, str]:
    """The lines that frames outside of the standard library are at, as far as they can be read here."""
    found: Dict[str, str] = {}
    texts: Dict[str, List[str]] = {}
    for path, number in re.findall(r'^  File "(/[^"\n]+\.py)", line (\d{1,7}) ', stacks, re.M)[:MAX_LINES]:
        if path not in texts:
            texts[path] = read_text(path, MAX_SOURCE).splitlines() if "/lib/python" not in path else []
        if 0 < int(number) <= len(texts[path]):
            found["%s:%s" % (path, number)] = texts[path][int(number) - 1].strip()[:60]
    return found


# -- stacks ------------------------------------------------------------------------------------------------------------


def _stacks(processes: Dict[int, _Json]) -> Dict[int, str]:
    """{pid: what the probe wrote}, the main thread last."""
    begun = {pid: _send_signal(process) for pid, process in processes.items() if process["python"]}
    time.sleep(SIGNAL_SECONDS if any(begun.values()) else 0)
    texts = {pid: read_text(at[0], MAX_STACKS, at[1]) for pid, at in begun.items() if at}
    return {pid: text for pid, text in texts.items() if "most recent call first" in text}


def _send_signal(process: _Json) -> Optional[Tuple[str, int]]:
    """Let the probe of that very process write its stacks. Returns into which file, and from which byte on."""
    pid = process["pid"]
    # The kernel gives the signal to the main thread.
    if process["state"] in "TtZXD" or _NOT_INTERRUPTED.search(process["wchan"]):
        return None
    for fd in _numbers("/proc/%d/fd" % pid):
        path = "/proc/%d/fd/%d" % (pid, fd)
        if re.search(_EVIDENCE_FILE % (pid, process["start"]), _link(path)):
            head = _SIGNAL.match(read_text(path, 1 << 17))
            number = int(head[1]) if head and int(head[2]) == fd else 0  # faulthandler knows the number of the file
            if 34 <= number <= 64 and has_handler(read_text("/proc/%d/status" % pid), number):
                with suppress(OSError):
                    size = os.stat(path).st_size
                    os.kill(pid, number)
                    return path, size
    return None


def has_handler(status: str, number: int) -> bool:
    """Whether the text of /proc/PID/status says that the signal is caught, and not blocked."""
    masks = dict(re.findall(r"^(SigCgt|SigBlk|SigIgn):\s*([0-9a-f]+)$", status, re.M))
    bits = {name: int(mask, 16) >> (number - 1) & 1 for name, mask in masks.items()}
    return bits == {"SigCgt": 1, "SigBlk": 0, "SigIgn": 0}


# -- the kernel, and NCCL ----------------------------------------------------------------------------------------------


def processes_here() -> List[int]:
    """All processes of this container but this one. If it shares its host's pids, its mounts tell them apart."""
    mounts = _link("/proc/self/ns/mnt")
    return [pid for pid in _numbers("/proc") if pid != os.getpid() and _link("/proc/%d/ns/mnt" % pid) == mounts]


def _read_all(pids: Iterable[int]) -> Dict[int, _Json]:
    """Processes that have ended are left out."""
    return {pid: process for pid, process in ((pid, _read_process(pid)) for pid in pids) if process}


def _read_process(pid: int) -> Optional[_Json]:
    top = "/proc/%d/" % pid
    fields, main, status = _stat(top), _stat("%stask/%d/" % (top, pid)), read_text(top + "status")
    if not fields or not main:
        return None
    words = read_text(top + "cmdline").split("\0")[:-1] or [read_text(top + "comm").strip()]
    is_python = os.path.basename(_link(top + "exe")).startswith(("python", "pypy"))
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "start": int(fields[19]),
        "namespace_pid": int((re.findall(r"^NSpid:.*?(\d+)$", status, re.M) or [pid])[0]),
        "argv": [word[:500] for word in words[:40]],
        "state": fields[0],
        "wchan": _wchan(top),
        "held": _held_threads(top),
        "env": dict(_VARIABLES.findall("\0" + read_text(top + "environ", 1 << 17))),
        "python": fields[0] not in "ZX" and (is_python or "/libpython3" in read_text(top + "maps", 1 << 20)),
        "cpu": (int(fields[11]) + int(fields[12])) / _TICK,
        "main_cpu": (int(main[11]) + int(main[12])) / _TICK,
    }


def _held_threads(top: str) -> Dict[int, List[str]]:
    """Threads in state D: in which function of the kernel, and how often each has run so far. One that has not run
    since the first look is held; one that reads files has."""
    found = {}
    for tid in _numbers(top + "task")[:MAX_THREADS]:
        thread = "%stask/%d/" % (top, tid)
        if _stat(thread)[:1] == ["D"]:
            runs = re.findall(r"ctxt_switches:\s*(\d+)", read_text(thread + "status"))
            found[tid] = [_wchan(thread), *runs]
    return found


def _wchan(top: str) -> str:
    """The function of the kernel in which a thread waits; empty if that is not shown."""
    name = read_text(top + "wchan").strip()
    return name if name != "0" else ""


def ask_ras(seconds: float = 6.0, port: int = 28028) -> str:
    """NCCL's own account of its communicators. Raises OSError if nothing answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as link:
        link.sendall(b"client protocol 2\ntimeout 5\nverbose status\n")
        data = chunk = link.recv(1 << 16)
        link.settimeout(1.0)  # it keeps the connection open at its end
        with suppress(socket.timeout):
            while chunk and len(data) < 1 << 18:
                chunk = link.recv(1 << 16)
                data += chunk
    return data.decode("utf-8", "replace")


def _stat(top: str) -> List[str]:
    """From the state on; the name before it may hold spaces and brackets."""
    fields = read_text(top + "stat").rpartition(")")[2].split()
    return fields if len(fields) > 19 else []


def _numbers(directory: str) -> List[int]:
    with suppress(OSError):
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    return []


def _link(path: str) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""


def read_text(path: str, most: int = 1 << 14, offset: int = 0) -> str:
    """Up to `most` bytes of a file; empty if it cannot be read. A pipe in its place does not block."""
    with suppress(OSError), open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as source:
        source.seek(offset) if offset else None
        return (source.read(most) or b"").decode("utf-8", "replace")
    return ""


if __name__ == "__main__":
    main(json.load(sys.stdin))
