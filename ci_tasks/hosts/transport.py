"""How a host is reached: its user gets a plain socket to a command that runs there. And the command that starts our
agent, only from bytes in memory whose SHA-256 the client has named.

The client sends agent.pyz, which holds sources. The host adds byte code, keeps that by the SHA-256 of its bytes, and
says it in its hello; the client names it the next time. So a start reads one file, checks it and compiles nothing, and
whatever a job has done to the files of its account, what runs is what was sent.
"""

from __future__ import annotations

import binascii
import contextlib
import shlex
import socket
import subprocess
import sys
import threading
from typing import Any, Protocol

from ci_tasks.agent import protocol
from ci_tasks.errors import Blocked

_CHUNK = 1 << 18
_GOODBYE_BYTES = len(protocol.frame(protocol.GOODBYE, bytes(16)))
_GOODBYE_HEAD = protocol.frame(protocol.GOODBYE, bytes(16))[:-16]
_END_S = 5.0  # for commands of this machine to end with their sockets, and for a server to repeat a goodbye


class LinkDied(Blocked):
    """The connection is gone, or the command at its end. Processes on the host may continue."""


class HostKeyRefused(Blocked):
    """The server at the other end is not shown to be the one that was meant."""


class Transport(Protocol):
    """`python` starts the agent. `is_server_running`: an earlier client left the command of the last socket running."""

    python: str
    is_server_running: bool

    def open(self, command: str) -> socket.socket:
        """Start a command in the host's login shell; what it writes, errors too, comes through the socket. Raises
        LinkDied, Blocked, UsageError."""
        ...

    def close(self) -> None:
        """Never blocks for long, however the connection is."""
        ...


def relay(client: socket.socket, channel: Any) -> bool:
    """Copy both ways between a socket and a channel (`recv`, `sendall`, `close`) until either has ended. Whether the
    server at the other end can serve another client: this one left with a goodbye, which the server has repeated. Else
    the channel is closed."""
    sent = said = b""  # the last bytes to the server, and from it
    has_left = threading.Event()

    def up() -> None:
        nonlocal sent
        with contextlib.suppress(Exception):
            while chunk := client.recv(_CHUNK):
                sent = (sent + chunk)[-_GOODBYE_BYTES:]
                channel.sendall(chunk)
        with contextlib.suppress(Exception):
            if not (sent.startswith(_GOODBYE_HEAD) and has_left.wait(_END_S)):
                channel.close()

    threading.Thread(target=up, daemon=True, name="ci-tasks relay").start()
    with contextlib.suppress(OSError, EOFError):  # the connection has gone
        while not has_left.is_set() and (chunk := channel.recv(_CHUNK)):
            said = (said + chunk)[-_GOODBYE_BYTES:]
            if said == sent and said.startswith(_GOODBYE_HEAD):
                has_left.set()
            with contextlib.suppress(OSError):  # the client has gone; what it sent before is still on its way up
                client.sendall(chunk)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
    if not has_left.is_set():
        with contextlib.suppress(Exception):
            channel.close()
    client.close()
    return has_left.is_set()


class LocalTransport:
    """Commands of this machine, each in a session of its own: ^C is not for them. They end with their socket."""

    is_server_running, python = False, shlex.quote(sys.executable)

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self, command: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            end, shell = theirs.fileno(), ["/bin/sh", "-c", command]
            self._processes.append(subprocess.Popen(shell, stdin=end, stdout=end, stderr=end, start_new_session=True))
        return ours

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)


# -- the start of the agent ------------------------------------------------------------------------------------------

START = b"ci-tasks "  # begins what we send
NO_AGENT, REFUSED = "no-agent", "refused"  # codes of a response in the place of the hello
PYTHON_HINT = "ci-tasks needs Python 3.8 or newer as python3 on the host"
QUIET_HINT = "let it return early without a terminal; at the top of ~/.bashrc: [[ $- == *i* ]] || return"
_HOME_HINT = "set the host's `workspace` in hosts.yaml (for this machine: CI_TASKS_HOME) to a directory of your own"

# Neither the output of a login script, nor a module of the job's, nor a file but the checked one is trusted. The empty
# line that `read` skips is for a login script which reads one.
_TEXT = r"""
import json, os, stat, struct, sys
def answer(code, text, hint=""):
    text = json.dumps({"code": code, "error": text + "\n" + hint}).encode()
    os.write(1, magic + struct.pack(">cIQI", b"A", 0, 0, len(text)) + text)
    sys.exit(0)
if sys.version_info < (3, 8):
    answer(refused, "python3 there is " + sys.version.split()[0], python_hint)
import marshal, pwd, zlib
from _frozen_importlib_external import MAGIC_NUMBER
from hashlib import sha256
def read(count):
    data = b""
    while len(data) < count:
        chunk = os.read(0, min(count - len(data), 1 << 16))
        if not chunk:
            sys.exit(3)
        data += chunk
    return data
home = os.path.realpath(os.path.expanduser(home))
agents = os.path.join(home, "agents")
def check(path, bits):  # only this user writes there
    found = os.stat(path)
    if os.geteuid() not in (0, found.st_uid):
        raise OSError(1, "belongs to " + pwd.getpwuid(found.st_uid)[0], path)
    if found.st_mode & bits:
        raise OSError(1, "can be written by others: chmod go-w " + path, path)
def load():
    path = os.path.join(agents, compiled)
    try:
        with open(path, "rb") as source:
            data = source.read(1 << 26)
        os.utime(path)  # `clean` keeps what was used lately
    except OSError:
        return b""
    return data if sha256(data).hexdigest() == compiled else b""
def keep(data, digest):
    beside = os.path.join(agents, "%s.%d" % (digest, os.getpid()))
    with open(beside, "wb") as out:
        out.write(data)
    os.replace(beside, os.path.join(agents, digest))
class Agent:
    def use(self, data):
        self.files, at = {}, data.rindex(b"PK\5\6")
        count, _, at = struct.unpack_from("<HII", data, at + 10)
        for _ in range(count):
            entry = struct.unpack_from("<HHHIIIHHHHHII", data, at + 10)
            packed, name, more, note, start = (entry[n] for n in (4, 6, 7, 8, 12))
            start += 30 + sum(struct.unpack_from("<HH", data, start + 26))
            self.files["<agent>/" + data[at + 46:at + 46 + name].decode()] = data[start:start + packed]
            at += 46 + name + more + note
    def get_data(self, path):
        if path not in self.files:
            raise FileNotFoundError(2, "no file of the agent", path)
        return self.files[path]
    def get_source(self, name):
        return self.get_data(sys.modules[name].__spec__.origin).decode()
    def find_spec(self, name, path=None, target=None):
        for end in ("/__init__.py", ".py"):
            path = "<agent>/" + name.replace(".", "/") + end
            if path in self.files and name.partition(".")[0] == "agent":
                spec = type(sys.__spec__)(name, self, origin=path, is_package=end != ".py")
                spec.has_location = True
                return spec
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        path = module.__spec__.origin
        code = self.files.get(path + "c", b"")
        if code[:4] == MAGIC_NUMBER:
            code = marshal.loads(code[16:])
        else:
            code = compile(self.files[path], path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
agent = Agent()
sys.meta_path.insert(0, agent)
header = read(header)
while header[:1] == b"\n":
    header = header[1:] + read(1)
if not header.startswith(start):
    answer(refused, "a login script on the host reads standard input", quiet_hint)
sent = read(int(header[len(start):]))
try:
    os.makedirs(home, mode=0o700, exist_ok=True)  # the mode is only for the last directory
    check(home, 0)
    os.makedirs(agents, mode=0o700, exist_ok=True)
    check(agents, 0o022)
    data = load() if compiled else b""
    if data:
        agent.use(data)
    if not data or agent.files["<agent>/agent/__init__.pyc"][:4] != MAGIC_NUMBER:
        data = zlib.decompress(sent) if sent else b""
        if sha256(data).hexdigest() != sources:
            answer(no_agent, "")
        agent.use(data)
        from agent.archive import with_bytecode
        data = with_bytecode(data)
        compiled = sha256(data).hexdigest()
        keep(data, compiled)
        agent.use(data)
except OSError as problem:
    text = "the workspace on the host cannot be used: %s: %s" % (problem.filename or home, problem.strerror)
    answer(refused, text, home_hint)
from agent.serve import main
main(home, data, compiled)
"""


def first_bytes(archive: bytes) -> bytes:
    """What the command reads: the agent, or nothing if the host has it. The empty line is for a login script that reads
    one."""
    return b"\n" + START + b"%012d" % len(archive) + archive


def start_command(home: str, sources: str, compiled: str, python: str = "python3") -> str:
    """What the host's login shell is to run, be it sh, csh or fish: no character in it means anything to them."""
    values = {"home": home, "sources": sources, "compiled": compiled, "header": len(START) + 12, "start": START}
    values |= {"magic": protocol.MAGIC, "no_agent": NO_AGENT, "refused": REFUSED}
    values |= {"python_hint": PYTHON_HINT, "quiet_hint": QUIET_HINT, "home_hint": _HOME_HINT}
    text = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + _TEXT
    code = binascii.b2a_base64(text.encode(), newline=False).decode()
    # -I: neither PYTHON* variables nor the directory count; -S: what is in site-packages is neither needed nor loaded.
    return f"exec {python} -I -S -c 'import binascii;exec(binascii.a2b_base64(\"{code}\"))'"
