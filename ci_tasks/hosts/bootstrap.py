"""How the agent comes to a host and starts there: only from bytes in memory whose SHA-256 the client has named.

The client sends agent.pyz, which holds sources, once. The host adds byte code, keeps both by the SHA-256 of their
bytes, and says that of the second in its hello; the client names it the next time. So a start reads one file, checks
it and compiles nothing, and whatever a job has done to the files of its account, what runs is what was sent.
"""

from __future__ import annotations

import binascii

from ci_tasks.agent.serving import frames

START = b"ci-tasks "  # begins what we send

# Neither the output of a login script, nor a module of the job's, nor a file but the checked one is trusted. The empty
# line that `read` skips is for a login script which reads one.
_TEXT = r"""
import os, stat, struct, sys
def send(mark, text=""):
    os.write(1, @magic + mark + str(text).encode("utf-8", "backslashreplace"))
    sys.exit(0)
if sys.version_info < (3, 8):
    send(@old, sys.version.split()[0])
import marshal, zlib
from _frozen_importlib_external import MAGIC_NUMBER
try:
    from _sha256 import sha256  # not hashlib, which loads OpenSSL
except ImportError:
    try:
        from _sha2 import sha256
    except ImportError:
        from hashlib import sha256
def read(count):
    data = b""
    while len(data) < count:
        chunk = os.read(0, min(count - len(data), 1 << 16))
        if not chunk:
            sys.exit(3)
        data += chunk
    return data
home = os.path.realpath(os.path.expanduser(@home))
agents = os.path.join(home, "agents")
def check(path, bits):  # only this user writes there
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    if os.geteuid() not in (0, found.st_uid):
        import pwd
        names = [user.pw_name for user in pwd.getpwall() if user.pw_uid == found.st_uid]
        send(@refused, "%s belongs to %s" % (path, (names or ["uid %d" % found.st_uid])[0]))
    if found.st_mode & bits:
        send(@refused, "%s can be written by others: chmod go-w %s" % (path, path))
def load(digest):
    path = os.path.join(agents, digest)
    try:
        with open(path, "rb") as source:
            data = source.read(1 << 26)
        os.utime(path)  # `clean` keeps what was used lately
    except OSError:
        return b""
    return data if sha256(data).hexdigest() == digest else b""
def keep(data):
    digest = sha256(data).hexdigest()
    beside = os.path.join(agents, "%s.%d" % (digest, os.getpid()))
    os.makedirs(home, mode=0o700, exist_ok=True)  # the mode is only for the last directory
    os.makedirs(agents, mode=0o700, exist_ok=True)
    with open(beside, "wb") as out:
        out.write(data)
    os.replace(beside, os.path.join(agents, digest))
    return digest
class Agent:
    def use(self, data):
        self.files, at = {}, data.rindex(b"PK\5\6")
        count, _, at = struct.unpack_from("<HII", data, at + 10)
        for _ in range(count):
            entry = struct.unpack_from("<HHHIIIHHHHHII", data, at + 10)
            how, packed, name, more, note, start = (entry[n] for n in (0, 4, 6, 7, 8, 12))
            self.files["<agent>/" + data[at + 46:at + 46 + name].decode()] = how, data, start, packed
            at += 46 + name + more + note
    def get_data(self, path):
        if path not in self.files:
            raise FileNotFoundError(2, "no file of the agent", path)
        how, data, start, size = self.files[path]
        start += 30 + sum(struct.unpack_from("<HH", data, start + 26))
        data = data[start:start + size]
        return zlib.decompress(data, -15) if how else data
    def get_source(self, name):
        return self.get_data(self.path(name)).decode()
    def path(self, name):
        path = "<agent>/" + name.replace(".", "/")
        return path + ("/__init__.py" if path + "/__init__.py" in self.files else ".py")
    def is_package(self, name):
        return self.path(name).endswith("/__init__.py")
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "agent" and self.path(name) in self.files:
            spec = type(sys.__spec__)(name, self, origin=self.path(name), is_package=self.is_package(name))
            spec.has_location = True
            return spec
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        path = self.path(module.__name__)
        code = self.get_data(path + "c") if path + "c" in self.files else b""
        if code[:4] == MAGIC_NUMBER:
            code = marshal.loads(code[16:])
        else:
            code = compile(self.get_data(path), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
agent = Agent()
sys.meta_path.insert(0, agent)
header = read(@header)
while header[:1] == b"\n":
    header = header[1:] + read(1)
if not header.startswith(@start):
    send(@unread)
sent = read(int(header[len(@start):]))
try:
    check(home, 0)
    check(agents, 0o022)
    digest = @compiled
    data = load(digest) if digest else b""
    if data:
        agent.use(data)
    if not data or agent.get_data("<agent>/agent/__init__.pyc")[:4] != MAGIC_NUMBER:
        data = zlib.decompress(sent) if sent else load(@sources)
        if sha256(data).hexdigest() != @sources:
            send(@asks)
        keep(data)
        agent.use(data)
        from agent.archive import with_bytecode
        data = with_bytecode(data)
        digest = keep(data)
        agent.use(data)
except OSError as problem:
    send(@refused, "%s: %s" % (problem.filename or home, problem.strerror))
from agent.serving.serve import main
main(home, data, digest)
"""


def header(size: int) -> bytes:
    """What stands before the agent, of `size` bytes; 0 if the host has it."""
    return START + b"%012d" % size


def command(home: str, sources: str, compiled: str, python: str = "python3") -> str:
    """What the host's login shell is to run, be it sh, csh or fish: no character in it means anything to them."""
    marks = {"old": frames.PYTHON_TOO_OLD, "refused": frames.HOME_REFUSED, "unread": frames.INPUT_TAKEN}
    marks |= {"magic": frames.MAGIC, "asks": frames.ASKS_FOR_AGENT, "start": START}
    values = {**marks, "header": len(header(0)), "home": home, "sources": sources, "compiled": compiled}
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"@{name}", repr(value))
    code = binascii.b2a_base64(text.encode(), newline=False).decode()
    # -I: neither PYTHON* variables nor the directory count; -S: what is in site-packages is neither needed nor loaded.
    return f"exec {python} -I -S -c 'import binascii;exec(binascii.a2b_base64(\"{code}\"))'"
