"""A test of the person's checkout → what it launches: read from its syntax tree, or recorded in a sandbox.

The sandbox is a process that sees the interpreter, a read-only checkout and an empty /tmp and home, and nothing else:
Linux namespaces without privileges, a root of its own (a small tmpfs), no network, own processes, no capabilities, and
limits of memory, time and file size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.recorder.syntax import MAIN, PYTEST, RECORDED, LaunchCall, Recording, by_name, read_source

ROOT = "/checkout"  # where a recorded test sees the checkout
SECONDS = 30
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix", "/etc/ld.so.cache")
_SANDBOX_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}

# Arguments: the new root, the checkout, the system's directories, "--", the command. Memory in KiB, files in 512 bytes.
_SCRIPT = f"""
set -eu
root=$1 checkout=$2; shift 2
mount -t tmpfs -o size=64m,mode=755,nosuid,nodev sandbox "$root"
show() {{
    if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root$(dirname "$2")"; : > "$root$2"; fi
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro,nosuid,nodev"$3" "$root$2"  # keeps what a user may not take away
}}
while [ "$1" != -- ]; do
    if [ -L "$1" ]; then cp -P "$1" "$root$1"; else show "$1" "$1" ""; fi
    shift
done
shift
show "$checkout" {ROOT} ,noexec
mkdir -p "$root/tmp" "$root/root" "$root/dev"; : > "$root/dev/null"; mount --bind /dev/null "$root/dev/null"
ulimit -c 0; ulimit -n 256; ulimit -t {SECONDS}; ulimit -v {1 << 20}; ulimit -f {1 << 15}
exec chroot "$root" env -C {ROOT} setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
# What CI's container sets for a test; the row's own variables come on top. docker passes proxies on.
_ENVIRONMENT = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
_ENVIRONMENT |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
_SECRET = "<secret "  # replaces a value that is not known here in a variable
Read = Callable[[str], "str | None"]
Say = Callable[[str], object]


@dataclass(frozen=True)
class LaunchRecorder:
    """Records the tests of one tree. `helpers` are a suite's launchers with their parameters, `read` gives the text of
    a file of the tree, and `directory` is the tree's, None if nothing of it may be executed."""

    helpers: Mapping[str, Sequence[str]]
    read: Read
    directory: Path | None = None
    say: Say = lambda text: None

    def record(self, test: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Recording:
        """What `python TEST ARGS` launches with the row's `env`. A file that pytest runs is only read."""
        source = self.read(test)
        if source is None:
            return Recording(stops=("the checkout has no such file",))
        shown = read_source(source, test, self.helpers)
        if self.directory is None or shown.stops or shown.entry == PYTEST:
            return shown
        self.say(f"recording {test}")
        public = {name: value for name, value in (env or {}).items() if _SECRET not in value}
        settings = {"test": test, "args": [*args], "helpers": {**self.helpers}, "env": {**_ENVIRONMENT, **public}}
        lines, problem = _run_sandboxed(self.directory.resolve(), [json.dumps(settings)])
        written: dict[str, list[Any]] = {"call": [], "stop": [], "end": []}
        for line in lines.splitlines():
            try:
                kind, data = json.loads(line)
                written[kind].append(by_name(LaunchCall(**data), self.helpers) if kind == "call" else str(data))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # a line that the end of the process cut, or that the test wrote
        calls, stops = written["call"], written["stop"]
        stops += [] if written["end"] else [problem or "it ended itself"]
        launches = any(call.function in self.helpers or call.commands for call in calls)
        entry = MAIN if launches else shown.entry
        return replace(shown, calls=tuple(calls), stops=tuple(stops), entry=entry, origin=RECORDED)


def open_recorder(
    checkout: Path, read: Read, helpers: Mapping[str, Sequence[str]], *, rev: str | None, execute: bool, say: Say
) -> LaunchRecorder:
    """A recorder of the person's own checkout; it only reads unless it is to `execute`, which it says. Raises
    UsageError if there is no sandbox for that, or a revision is asked for."""
    if not execute:
        return LaunchRecorder(helpers, read)
    if rev:
        hint = f"`git worktree add /tmp/{rev} {rev}`, and --repo /tmp/{rev}; or leave --record out"
        raise UsageError("--record executes the working tree, not a revision", hint=hint)
    if why := unavailable_reason():
        raise UsageError(f"--record needs Linux namespaces; this machine has none: {why}", hint="leave --record out")
    say("executing this checkout's tests under stubs, in a sandbox without network")
    return LaunchRecorder(helpers, read, checkout, say)


@cache
def unavailable_reason() -> str:
    """Why this machine has no sandbox; "" if it has one."""
    with tempfile.TemporaryDirectory() as empty:
        return _run_sandboxed(Path(empty), [])[1]


def _run_sandboxed(checkout: Path, args: Sequence[str]) -> tuple[str, str]:
    """Run `stubs.py` in the sandbox: what it wrote, and why it did not come to its end ("" if it did)."""
    prefix = os.path.realpath(sys.base_prefix)
    shown = [path for path in _SYSTEM if os.path.lexists(path)] + ([prefix] if not prefix.startswith("/usr") else [])
    source = resources.files(__package__).joinpath("stubs.py").read_bytes()
    with tempfile.TemporaryDirectory(prefix="ci-tasks-sandbox-") as root, tempfile.TemporaryFile() as out:
        command = [*_UNSHARE, "--kill-child", "--", "/bin/sh", "-c", _SCRIPT, "sh", root, str(checkout), *shown, "--"]
        command += [os.path.realpath(sys.executable), "-S", "-", *args]
        streams: dict[str, Any] = {"stdout": out, "stderr": subprocess.PIPE, "check": False}
        try:
            done = subprocess.run(command, input=source, env=_SANDBOX_ENV, timeout=SECONDS, **streams)
            said = done.stderr.decode(errors="replace").strip().splitlines()
            problem = (said or [f"it ended with {done.returncode}"])[-1] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"it ran for more than {SECONDS} s"
        except OSError as error:
            problem = str(error)
        out.seek(0)
        return out.read().decode(errors="replace"), problem
