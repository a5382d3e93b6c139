"""The command that a connection to a host begins with: it starts the agent there, whichever version the host has of it.

It loads the agent that stands on standard input, or that an earlier client left, and hands it the rest. The agent is
unpacked, since Python keeps no byte code of what lies in a zip file: to compile it each time is most of a warm start.
"""

from __future__ import annotations

import base64

from ci_tasks.agent.serving import frames

START = b"ci-tasks "  # begins what we send
_LOCK_WAIT_S = 10.0  # seconds, fewer than the client waits for a word

_TEXT = """
import os, sys
MAGIC = {magic!r}
def send(mark, text):
    os.write(1, MAGIC + mark + text.encode())
    sys.exit(0)
def read(count):
    data = b""
    while len(data) < count:
        chunk = os.read(0, min(count - len(data), 1 << 16))
        if not chunk:
            sys.exit(3)
        data += chunk
    return data
if sys.version_info < (3, 8):
    send({old!r}, sys.version.split()[0])
home = os.path.realpath(os.path.expanduser({home!r}))
def refuse(error):
    send({refused!r}, "%s: %s" % (error.filename or home, error.strerror))
try:
    owner = os.stat(home).st_uid
except FileNotFoundError:
    owner = os.geteuid()
except OSError as error:
    refuse(error)
if os.geteuid() not in (0, owner):  # what lies there would be run, and it is not ours
    try:
        import pwd
        name = pwd.getpwuid(owner).pw_name
    except Exception:
        name = "uid %d" % owner
    send({refused!r}, "%s belongs to %s" % (home, name))
agent = os.path.join(home, "agents", {digest!r} + ".pyz")
code = os.path.join(home, "code", {digest!r})
header = read({header})
while header[:1] == b"\\n":
    header = header[1:] + read(1)
if not header.startswith({start!r}):
    send({unread!r}, "")
size = int(header[len({start!r}):])
if size:
    archive = read(size)
    if not os.path.exists(agent):
        beside = agent + ".%d" % os.getpid()
        try:
            os.makedirs(home, mode=0o700, exist_ok=True)  # the mode is only for the last directory
            os.makedirs(os.path.dirname(agent), mode=0o700, exist_ok=True)
            with open(beside, "wb") as out:
                out.write(archive)
            os.replace(beside, agent)
        except OSError as error:
            if os.path.lexists(beside):
                os.unlink(beside)
            refuse(error)
elif not os.path.exists(agent):
    send({asks!r}, "")
try:
    os.utime(agent)  # `clean` keeps what was used lately
except OSError:  # read-only, say: what cannot be done is refused when it is asked for
    pass
def unpacked():
    return os.path.exists(os.path.join(code, "__main__.py"))
def wait_for(lock):
    import fcntl, time
    until = time.monotonic() + {lock_wait}
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:  # it was stopped, or hangs on its disk
                raise
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return
def unpack():
    import shutil, zipfile
    above, name = os.path.split(code)
    os.makedirs(above, mode=0o700, exist_ok=True)
    lock = os.open(above, os.O_RDONLY)  # what another has just unpacked must not be removed
    beside = code + ".%d" % os.getpid()
    try:
        wait_for(lock)
        if not unpacked():
            for left in os.listdir(above):
                # Only byte code, of a process that was just importing when somebody removed it; of one that was killed.
                if left == name or left.startswith(name + "."):
                    shutil.rmtree(os.path.join(above, left))
            os.makedirs(beside, mode=0o700)
            zipfile.ZipFile(agent).extractall(beside)
            os.rename(beside, code)
    finally:
        os.close(lock)
        shutil.rmtree(beside, ignore_errors=True)
try:
    if not unpacked():
        unpack()
    os.utime(code)
except OSError:
    code = agent
sys.path.insert(0, code)
try:
    from agent.serving.serve import InstalledAgent, main
except ImportError:
    if size:
        raise
    import shutil
    shutil.rmtree(code, ignore_errors=True)  # removed since we looked, or half of it
    send({asks!r}, "")
main(home, InstalledAgent(agent, code))
"""


def header(size: int) -> bytes:
    """What stands before the agent's archive, of `size` bytes; 0 where the host has it."""
    return START + b"%012d" % size


def command(home: str, digest: str) -> str:
    """What the host's login shell is to run, be it sh, csh or fish: no character in it means anything to them."""
    text = _TEXT.format(
        magic=frames.MAGIC,
        old=frames.PYTHON_TOO_OLD,
        asks=frames.ASKS_FOR_AGENT,
        unread=frames.INPUT_TAKEN,
        refused=frames.HOME_REFUSED,
        lock_wait=_LOCK_WAIT_S,
        start=START,
        header=len(header(0)),
        home=home,
        digest=digest,
    )
    code = base64.b64encode(text.encode()).decode()
    # -S: nothing of site-packages is needed, and what is installed there may take longer to load than all of ours.
    return f"exec python3 -I -S -c 'import base64;exec(base64.b64decode(\"{code}\"))'"
