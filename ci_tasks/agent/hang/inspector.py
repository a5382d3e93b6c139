"""Reads what the processes of one machine, or of one container, do: stacks, states, system calls, pipes and sockets.

Two looks some seconds apart, each part with a time limit; nothing of a process is changed. The text of this module is
piped into a Python there (`collect`), so it imports nothing of ours. It prints one JSON object with fields of
`facts.HangFacts`.

py-spy reads the stacks from the memory of a process. If it cannot, a signal makes the probe write them, only in a
process that has the probe's file open under its own pid and start, and whose SigCgt shows the handler: the signal would
kill any other.
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
from contextlib import suppress
from typing import Any, BinaryIO, Dict, Iterable, List, Optional, Tuple

SECONDS = 40.0  # for everything
BETWEEN = 3.0  # seconds from the first look to the second
SIGNAL_SECONDS = 1.0  # for the probe to write its stacks
PY_SPY_SECONDS = 8.0  # for one process
NATIVE_SECONDS = 12.0  # for the native frames of all
MAX_PROCESSES, MAX_THREADS, MAX_FILES, MAX_FRAMES = 2000, 400, 2000, 120
MAX_STACKS, MAX_ALL_STACKS = 1 << 17, 6 << 20  # characters of a process, and of all
MAX_SOURCE, MAX_SOURCES = 1 << 18, 1 << 21  # characters of a file, and of all
NO_NCCL = "NCCL's own account: no NCCL answers here, which is normal for a job without NCCL"
_AGENTS = "\0CI_TASKS_NO_PROBE="  # probe.payload.notes.OFF
_EVIDENCE_FILE = r"/%d-(?:%d|0)-[0-9a-f]{8}\.jsonl$"  # pid and start
_SIGNAL = re.compile(r'\{"event": "start", .*"signal": (\d\d), "descriptor": (\d+)\}')
# pause and sigsuspend, which any signal ends for good, on x86-64 and on ARM. Python repeats other calls.
_ENDED_BY_SIGNAL = {"x86_64": ("34", "130"), "aarch64": ("133",)}
_VARIABLES = re.compile(r"\0(\w*RANK|\w*WORLD_SIZE|PMI_SIZE|TORCH_\w+_FILE)=([^\0]{0,500})")
_TICK = float(os.sysconf("SC_CLK_TCK"))
_Json = Dict[str, Any]
_Texts = Dict[int, Tuple[str, str]]  # {pid: (who wrote its stacks, stacks)}


def main(source: BinaryIO) -> None:
    """Inspect the pids in the first line of `source` (null: all processes here), with the py-spy that follows."""
    pids, content, py_spy, could_not = json.loads(source.readline()), source.read(), "", []
    try:
        py_spy = _program_in_memory(content) if content else ""
    except (OSError, AttributeError) as error:  # Python 3.7 has no memfd_create
        could_not.append("py-spy was not started: %s" % error)
    found = inspect(processes_here() if pids is None else pids, py_spy)
    found["could_not"] += could_not
    try:
        found["ras"] = {"": ask_ras()}
    except ConnectionRefusedError:
        found["could_not"].append(NO_NCCL)
    except OSError as error:
        found["could_not"].append("no answer of NCCL: %s" % error)
    json.dump(found, sys.stdout)


def inspect(pids: List[int], py_spy: str = "", between: float = BETWEEN) -> _Json:
    """The facts of processes that are there in both looks. `py_spy` is the path of the program, or empty."""
    began = time.monotonic()
    first = _read_all(pids[:MAX_PROCESSES])
    before, _ = _stacks(first, py_spy, began + SECONDS)
    time.sleep(max(0.0, began + between - time.monotonic()))
    passed = time.monotonic() - began
    processes = {pid: now for pid, now in _read_all(first).items() if now["start"] == first[pid]["start"]}
    # Native frames only now: py-spy stops each process for some milliseconds to read them.
    after, could_not = _stacks(processes, py_spy, began + SECONDS, native=True)
    left = MAX_ALL_STACKS
    for pid, process in processes.items():
        earlier = {thread["tid"]: thread for thread in first[pid]["threads"]}
        for thread in process["threads"]:
            old = earlier.get(thread["tid"], {"ticks": thread["ticks"]})
            still = all(thread[key] == old.get(key) for key in ("state", "wchan", "syscall"))
            thread.update(still=still, cpu=round((thread["ticks"] - old["ticks"]) / _TICK, 3))
        (by, text), (by_before, text_before) = after.get(pid, ("", "")), before.get(pid, ("", ""))
        same = None if not text or by != by_before else _functions(text) == _functions(text_before)
        process.update(stacks=text[:left], same_stacks=same)
        left = max(0, left - len(text))
    every = list(processes.values())
    return {
        "seconds_between": round(passed, 3),
        "processes": every,
        "sockets": _connections(every),
        "locks": _lock_waits(processes),
        "sources": _sources("\n".join(process["stacks"] for process in every)),
        "could_not": could_not,
    }


def _functions(text: str) -> List[str]:
    """What is compared of stacks: the program's own functions in the main thread. Lines of a loop may differ."""
    main = text.rpartition("(most recent call first):")[2]
    return re.findall(r'^  File "(?!.*(?:/lib/python|-packages/)|<frozen)[^"]*", line \d+ in (.*)', main, re.M)


def _sources(stacks: str) -> Dict[str, str]:
    """The files of frames outside of the standard library, as far as they can be read here."""
    left, found = MAX_SOURCES, {}
    for path in dict.fromkeys(re.findall(r'^  File "(/[^"\n]+\.py)"', stacks, re.M)):
        text = read_text(path, MAX_SOURCE + 1) if "/lib/python" not in path else ""
        if 0 < len(text) <= min(MAX_SOURCE, left):
            found[path] = text
            left -= len(text)
    return found


# -- stacks ------------------------------------------------------------------------------------------------------------


def _stacks(processes: Dict[int, _Json], py_spy: str, until: float, native: bool = False) -> Tuple[_Texts, List[str]]:
    """(stacks of the Python processes, what is missing)."""
    # The process that computes least waits most. To stop one that is stopped would never end.
    pythons = sorted((one for one in processes.values() if one["python"]), key=lambda one: one["cpu_seconds"])
    # Their memory is read while they go on.
    answers = _dump_all([one["pid"] for one in pythons], py_spy, "--nonblocking", until)
    # Last, since the stop may end a system call such as a write that has written a part.
    pids = [one["pid"] for one in pythons if one["state"] not in "TtD"] if native else []
    natives = _dump_all(pids, py_spy, "--native", min(until, time.monotonic() + NATIVE_SECONDS))
    could_not = ["native frames of pid %d: %s" % (pid, why) for pid, (text, why) in natives.items() if not text]
    answers.update({pid: answer for pid, answer in natives.items() if re.search(r'", line \d', answer[0])})
    found = {pid: ("py-spy", text) for pid, (text, _) in answers.items() if text}
    found.update(_by_signal([one for one in pythons if one["pid"] not in found]))
    for pid in [one["pid"] for one in pythons if one["pid"] not in found]:
        could_not.append("stacks of pid %d: %s" % (pid, answers.get(pid, ("", "no answer of the probe"))[1]))
    return found, could_not


def _dump_all(pids: List[int], py_spy: str, mode: str, until: float) -> Dict[int, Tuple[str, str]]:
    """{pid: (stacks, why there are none)}"""
    if not py_spy:
        return {}
    with ThreadPoolExecutor(16) as pool:
        return dict(zip(pids, pool.map(lambda pid: _dump(py_spy, mode, pid, until), pids)))  # noqa: B905


def _dump(py_spy: str, mode: str, pid: int, until: float) -> Tuple[str, str]:
    argv = [py_spy, "dump", "--json", mode, "--pid", str(pid)]
    seconds = max(0.0, min(PY_SPY_SECONDS, until - time.monotonic()))
    try:  # a program in memory is a descriptor of ours
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, close_fds=False)
        if done.returncode == 0:
            return _as_faulthandler(json.loads(done.stdout), pid)[:MAX_STACKS], ""
        return "", "py-spy: " + done.stderr.decode("utf-8", "replace").strip()[:200]
    except (OSError, ValueError, TypeError, AttributeError, KeyError, subprocess.TimeoutExpired) as error:
        return "", "py-spy: " + str(error)[-100:]


def _as_faulthandler(threads: List[_Json], pid: int) -> str:
    """py-spy's JSON as faulthandler writes stacks, the main thread last."""
    lines = []
    for thread in sorted(threads, key=lambda one: (one["os_thread_id"] == pid, one["thread_name"] == "MainThread")):
        name = (thread["thread_name"] or "").replace("]", " ")
        lines.append("Thread 0x%x [%s] (most recent call first):" % (thread["os_thread_id"] or 0, name))
        for frame in thread["frames"][:MAX_FRAMES]:
            line = frame["line"] if frame["filename"].endswith((".py", ">")) and frame["line"] else "???"
            lines.append('  File "%s", line %s in %s' % (frame["filename"], line, frame["name"]))
    return "\n".join(lines)


def _by_signal(processes: List[_Json]) -> _Texts:
    waiting = {process["pid"]: _send_signal(process) for process in processes}
    time.sleep(SIGNAL_SECONDS if any(waiting.values()) else 0)
    texts = {pid: read_text(begun[0], MAX_STACKS, begun[1]) for pid, begun in waiting.items() if begun}
    return {pid: ("probe", text) for pid, text in texts.items() if "most recent call first" in text}


def _send_signal(process: _Json) -> Optional[Tuple[str, int]]:
    """Let the probe of that very process write its stacks. Returns into which file, and from which byte on."""
    pid, calls = process["pid"], _ENDED_BY_SIGNAL.get(os.uname().machine, ())
    main = next((thread["syscall"] for thread in process["threads"] if thread["tid"] == pid), "")
    if process["state"] in "TtZXD" or main.partition(" ")[0] in calls:
        return None
    for fd in _numbers("/proc/%d/fd" % pid):
        path = "/proc/%d/fd/%d" % (pid, fd)
        if re.search(_EVIDENCE_FILE % (pid, process["start"]), _link(path)):
            head = _SIGNAL.match(read_text(path, 1 << 17))
            number = int(head[1]) if head and int(head[2]) == fd else 0  # faulthandler knows the number of the file
            if 34 <= number <= 64 and has_handler(read_text("/proc/%d/status" % pid), number):
                try:
                    size = os.stat(path).st_size
                    os.kill(pid, number)
                    return path, size
                except OSError:
                    return None
    return None


def has_handler(status: str, number: int) -> bool:
    """Whether the text of /proc/PID/status says that the signal is caught, and not blocked."""
    masks = dict(re.findall(r"^(SigCgt|SigBlk|SigIgn):\s*([0-9a-f]+)$", status, re.M))
    bits = {name: int(mask, 16) >> (number - 1) & 1 for name, mask in masks.items()}
    return bits == {"SigCgt": 1, "SigBlk": 0, "SigIgn": 0}


def _program_in_memory(content: bytes) -> str:
    """The path of a program that is in no file, so that no mount with `noexec` matters."""
    handle = os.memfd_create("py-spy", 0)  # programs that are started inherit it
    with open(handle, "wb", closefd=False) as out:
        out.write(content)
    return "/proc/self/fd/%d" % handle


# -- the kernel, and NCCL ----------------------------------------------------------------------------------------------


def processes_here() -> List[int]:
    """All processes of this container but this one, and what the agent runs here to ask for packages. If the container
    shares its host's pids, its mounts tell them apart."""
    mounts = _link("/proc/self/ns/mnt")
    pids = [pid for pid in _numbers("/proc") if pid != os.getpid() and _link("/proc/%d/ns/mnt" % pid) == mounts]
    return [pid for pid in pids if _AGENTS not in "\0" + read_text("/proc/%d/environ" % pid, 1 << 17)]


def _read_all(pids: Iterable[int]) -> Dict[int, _Json]:
    """Those that are gone are left out."""
    return {pid: process for pid, process in ((pid, _read_process(pid)) for pid in pids) if process}


def _read_process(pid: int) -> Optional[_Json]:
    top = "/proc/%d/" % pid
    fields, status = _stat(top), read_text(top + "status")
    if not fields:
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
        "env": dict(_VARIABLES.findall("\0" + read_text(top + "environ", 1 << 17))),
        "python": fields[0] not in "ZX" and (is_python or "/libpython3" in read_text(top + "maps", 1 << 20)),
        "threads": [_read_thread("%stask/%d/" % (top, tid), tid) for tid in _numbers(top + "task")[:MAX_THREADS]],
        "cpu_seconds": round((int(fields[11]) + int(fields[12])) / _TICK, 2),
        "files": _files(top + "fd/"),
    }


def _read_thread(top: str, tid: int) -> _Json:
    fields = _stat(top) or ["X"] + ["0"] * 20
    wchan, syscall = read_text(top + "wchan").strip(), read_text(top + "syscall").strip()
    ticks = int(fields[11]) + int(fields[12])
    return {"tid": tid, "state": fields[0], "wchan": "" if wchan == "0" else wchan, "syscall": syscall, "ticks": ticks}


def _files(top: str) -> List[_Json]:
    found = []
    for fd in _numbers(top)[:MAX_FILES]:
        path = "%s%d" % (top, fd)
        try:
            target, link, file = os.readlink(path), os.lstat(path), os.stat(path)
        except OSError:
            continue
        if target.startswith(("pipe:", "socket:")) or stat.S_ISFIFO(file.st_mode):
            reads, writes = bool(link.st_mode & stat.S_IRUSR), bool(link.st_mode & stat.S_IWUSR)
            found.append({"fd": fd, "target": target, "inode": file.st_ino, "reads": reads, "writes": writes})
    return found


def _lock_waits(pids: Iterable[int]) -> List[_Json]:
    """Which process waits for whose lock on a file."""
    lines = re.findall(r"(\d+): (-> )?\w+ +\w+ +\w+ +(-?\d+) ", read_text("/proc/locks", 1 << 20))
    holders = {number: int(pid) for number, waits, pid in lines if not waits}
    waiting = [(int(pid), number) for number, waits, pid in lines if waits and int(pid) in pids and number in holders]
    return [{"waiter": waiter, "holder": holders[number]} for waiter, number in waiting]


def _connections(processes: List[_Json]) -> List[_Json]:
    """The connected TCP sockets of the processes; each network namespace is read once."""
    inodes = {str(file["inode"]) for process in processes for file in process["files"] if file["target"][0] == "s"}
    found = []
    for net, pid in {_link("/proc/%d/ns/net" % each["pid"]): each["pid"] for each in processes if inodes}.items():
        text = "".join(read_text("/proc/%d/net/%s" % (pid, name), 1 << 23) for name in ("tcp", "tcp6"))
        rows = [fields for fields in map(str.split, text.splitlines()) if fields[3:4] == ["01"] and fields[9] in inodes]
        found += [{"inode": int(row[9]), "local": row[1], "remote": row[2], "net": net} for row in rows]
    return found


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
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_text(path: str, most: int = 1 << 14, offset: int = 0) -> str:
    """Up to `most` bytes of a file; empty if it cannot be read. A pipe in its place does not block."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as source:
            source.seek(offset) if offset else None
            return (source.read(most) or b"").decode("utf-8", "replace")
    except OSError:
        return ""
