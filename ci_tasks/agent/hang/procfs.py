"""What the kernel says of processes: state, threads, system calls, pipes, sockets and locks, and the probe's open file.

Without imports of ours, as `inspector`, which is piped into a container's Python with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from typing import Any, Dict, List, Optional, Tuple

MAX_THREADS = 400  # of a process
MAX_FILES = 2000
MAX_EVIDENCE = 1 << 19  # bytes of the probe's file that are read
_PROC = "/proc"
_AGENTS = "CI_TASKS_NO_PROBE"  # probe.payload.evidence_file.OFF
EVIDENCE_FILE = re.compile(r"/(\d+)-(\d+)-[0-9a-f]{8}\.jsonl$")
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "CUDA_VISIBLE_DEVICES"),
    *("SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"),
    *("PYTEST_XDIST_WORKER", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"),
)

_Json = Dict[str, Any]


def others() -> List[int]:
    """All processes of this container but this one, those below and above it, and what the agent runs there to ask for
    packages. Where it shares its host's pids, its mounts tell them apart."""
    own, pid = set(), os.getpid()
    while pid > 1:
        own.add(pid)
        pid = _parent(pid)
    pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    mounts, first = (read_link("%s/%s/ns/mnt" % (_PROC, name)) for name in ("self", "1"))
    if first != mounts:
        pids = [pid for pid in pids if read_link("%s/%d/ns/mnt" % (_PROC, pid)) == mounts]
    return sorted(pid for pid in pids if pid not in own and _parent(pid) != os.getpid() and not _is_agents(pid))


def read_process(pid: int) -> Optional[_Json]:
    """None where it is gone."""
    fields = _stat("%s/%d/stat" % (_PROC, pid))
    if not fields:
        return None
    status = read_text("%s/%d/status" % (_PROC, pid), 1 << 14)
    argv = read_text("%s/%d/cmdline" % (_PROC, pid), 1 << 13).split("\0")[:-1]
    env, forked, evidence = _evidence(pid, int(fields[19]), status)
    threads = _threads(pid)
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "start": int(fields[19]),
        "namespace_pid": int((re.findall(r"^NSpid:.*?(\d+)$", status, re.M) or [pid])[0]),
        "name": read_text("%s/%d/comm" % (_PROC, pid), 64).strip(),
        "argv": [word[:500] for word in argv[:40]],
        "state": fields[0],
        "env": dict(_environ(pid), **env),
        "forked": forked,
        "python": fields[0] not in "ZX" and _is_python(pid, evidence is not None),
        "threads": threads,
        "cpu_first": sum(thread["ticks"] for thread in threads),
        "cpu_ticks": int(fields[11]) + int(fields[12]),
        "files": _files(pid),
        "evidence": evidence,
        "could_not": [],
        "ended": False,
    }


def send_signal(pid: int, start: int, number: int) -> bool:
    """Send it to that very process, if it has a handler for it now."""
    if not 34 <= number <= 64:
        return False
    handle = -1
    try:
        if hasattr(os, "pidfd_open"):
            handle = os.pidfd_open(pid)  # another process cannot get the number meanwhile
        fields = _stat("%s/%d/stat" % (_PROC, pid))
        if (
            not fields
            or int(fields[19]) != start
            or not has_handler(read_text("%s/%d/status" % (_PROC, pid), 1 << 14), number)
        ):
            return False
        if handle >= 0 and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
        return True
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def why_forbidden(pid: int) -> str:
    """What kept us from reading the memory of a process, as far as the kernel says it."""
    own, other = (read_text("%s/%s/status" % (_PROC, name), 1 << 14) for name in ("self", str(pid)))
    return ptrace_problem(own, other, read_text(_PROC + "/sys/kernel/yama/ptrace_scope", 16).strip())


def ptrace_problem(own_status: str, other_status: str, yama_scope: str) -> str:
    """The same, from the texts of our and its /proc/PID/status, and of yama/ptrace_scope."""
    own, other = (dict(re.findall(r"^(\w+):\s*(.*)$", text, re.M)) for text in (own_status, other_status))
    if int(own.get("CapEff", "0"), 16) >> 19 & 1:
        return "ptrace is forbidden although we have CAP_SYS_PTRACE (seccomp, or a security module)"
    uids = [status.get("Uid", "").split()[1:2] for status in (own, other)]
    found = ["it is of uid %s, we are %s" % (*uids[1], *uids[0])] if all(uids) and uids[0] != uids[1] else []
    if yama_scope not in ("", "0"):
        found.append("kernel.yama.ptrace_scope is %s" % yama_scope)
    if int(other.get("CapPrm", "0"), 16) & ~int(own.get("CapPrm", "0"), 16):
        found.append("it has capabilities that we lack")
    return ", ".join([*found, "no CAP_SYS_PTRACE"])


def has_handler(status: str, number: int) -> bool:
    """Whether the text of /proc/PID/status says that the signal is caught, and not held back."""
    masks = {}
    for name in ("SigCgt", "SigBlk", "SigIgn"):
        found = re.search(r"^%s:\s*([0-9a-f]+)$" % name, status, re.M)
        masks[name] = int(found.group(1), 16) >> (number - 1) & 1 if found else None
    return masks == {"SigCgt": 1, "SigBlk": 0, "SigIgn": 0}


def lock_waits(pids: Any) -> List[_Json]:
    """Who waits for whose lock on a file."""
    found = []
    holders: Dict[str, Tuple[int, str]] = {}
    for line in read_text(_PROC + "/locks", 1 << 20).splitlines():
        fields = line.split()
        number, waits = fields[0].rstrip(":") if fields else "", "->" in fields[:2]
        fields = [field for field in fields[1:] if field != "->"]
        if len(fields) < 5 or not re.match(r"-?\d+$", fields[3]):
            continue
        if not waits:
            holders[number] = (int(fields[3]), fields[0])
        elif number in holders and int(fields[3]) in pids:
            holder, kind = holders[number]
            found.append({"waiter": int(fields[3]), "holder": holder, "kind": kind})
    return found


def connections(processes: List[_Json]) -> List[_Json]:
    inodes = {file["inode"] for process in processes for file in process["files"] if file["target"][:6] == "socket"}
    found: Dict[Tuple[str, int], _Json] = {}
    seen = set()
    for process in processes if inodes else ():
        net = read_link("%s/%d/ns/net" % (_PROC, process["pid"]))
        if net in seen:
            continue
        seen.add(net)
        for name in ("tcp", "tcp6"):
            for line in read_text("%s/%d/net/%s" % (_PROC, process["pid"], name), 1 << 23).splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "01" and fields[9].isdigit() and int(fields[9]) in inodes:
                    inode = int(fields[9])
                    found[net, inode] = {"inode": inode, "local": fields[1], "remote": fields[2], "net": net}
    return list(found.values())


def _evidence(pid: int, start: int, status: str) -> Tuple[Dict[str, str], bool, Optional[_Json]]:
    """(variables, forked, file) that the probe of this very process wrote."""
    directory = "%s/%d/fd" % (_PROC, pid)
    for fd in _names(directory):
        match = EVIDENCE_FILE.search(read_link("%s/%s" % (directory, fd)))
        if match and (int(match.group(1)), int(match.group(2))) in ((pid, start), (pid, 0)):
            return _parse_evidence("%s/%s" % (directory, fd), int(fd), status)
    return {}, False, None


def _parse_evidence(path: str, fd: int, status: str) -> Tuple[Dict[str, str], bool, Optional[_Json]]:
    env: Dict[str, str] = {}
    forked, writes, number, size = False, False, 0, 0
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}, False, None
    with os.fdopen(handle, "rb") as source:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            return {}, False, None
        size = info.st_size
        text = source.read(MAX_EVIDENCE).decode("utf-8", "replace")
    for line in text.split("\n"):
        if not line.startswith('{"event": "start"') and not line.startswith('{"event": "environ"'):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        values = event.get("env")
        if isinstance(values, dict):
            env.update((str(key), str(value)[:500]) for key, value in values.items() if key in _VARIABLES)
        if event.get("event") == "start":
            forked, number = event.get("forked") is True, event.get("signal")
            writes = event.get("descriptor") == fd  # faulthandler knows the number; another file may have it by now
    is_ready = writes and isinstance(number, int) and 34 <= number <= 64 and has_handler(status, number)
    return env, forked, {"path": path, "signal": number, "size": size} if is_ready else None


def _environ(pid: int) -> Dict[str, str]:
    pairs = (text.partition("=") for text in read_text("%s/%d/environ" % (_PROC, pid), 1 << 17).split("\0"))
    return {name: value[:500] for name, _, value in pairs if name in _VARIABLES}


def _threads(pid: int) -> List[_Json]:
    top = "%s/%d/task" % (_PROC, pid)
    found = []
    for name in _names(top)[:MAX_THREADS]:
        here = "%s/%s" % (top, name)
        fields = _stat(here + "/stat")
        if fields:
            values = {"tid": int(name), "state": fields[0], "ticks": int(fields[11]) + int(fields[12])}
            values.update(name=read_text(here + "/comm", 64).strip(), wchan=read_text(here + "/wchan", 100).strip())
            values["syscall"] = read_text(here + "/syscall", 300).strip()
            if values["wchan"] == "0":
                values["wchan"] = ""
            found.append(values)
    return found


def _files(pid: int) -> List[_Json]:
    top = "%s/%d/fd" % (_PROC, pid)
    found = []
    for name in _names(top)[:MAX_FILES]:
        path = "%s/%s" % (top, name)
        target = read_link(path)
        try:
            if not target.startswith(("pipe:", "socket:")) and not stat.S_ISFIFO(os.stat(path).st_mode):
                continue
            mode, inode = os.lstat(path).st_mode, os.stat(path).st_ino
        except OSError:
            continue
        values = {"fd": int(name), "target": target, "inode": inode}
        values.update(reads=bool(mode & stat.S_IRUSR), writes=bool(mode & stat.S_IWUSR))
        found.append(values)
    return found


def _is_python(pid: int, has_probe: bool) -> bool:
    if has_probe or os.path.basename(read_link("%s/%d/exe" % (_PROC, pid))).startswith(("python", "pypy")):
        return True
    return "/libpython3" in read_text("%s/%d/maps" % (_PROC, pid), 1 << 20)


def is_same(process: _Json, again: Optional[_Json]) -> bool:
    return again is not None and again["start"] == process["start"]


def _is_agents(pid: int) -> bool:
    return "\0%s=" % _AGENTS in "\0" + read_text("%s/%d/environ" % (_PROC, pid), 1 << 17)


def _parent(pid: int) -> int:
    fields = _stat("%s/%d/stat" % (_PROC, pid))
    return int(fields[1]) if fields else 0


def _stat(path: str) -> List[str]:
    """From the state on; the name before it may hold spaces and brackets."""
    fields = read_text(path, 4096).rpartition(")")[2].split()
    return fields if len(fields) > 19 else []


def _names(directory: str) -> List[str]:
    try:
        return sorted((name for name in os.listdir(directory) if name.isdigit()), key=int)
    except OSError:
        return []


def read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_text(path: str, most: int) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        with os.fdopen(handle, "rb", closefd=False) as source:
            return source.read(most).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(handle)
