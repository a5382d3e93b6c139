"""A process that sees the interpreter, a read-only checkout and an empty /tmp and home, and nothing else.

Linux namespaces without privileges: a root of its own (a small tmpfs), no network, own processes, no capabilities, and
limits of memory, time and file size.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ci_tasks.features.recorder.records import ROOT

SECONDS = 30
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix", "/etc/ld.so.cache")
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}

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


@cache
def unavailable_reason() -> str:
    """Why this machine has no sandbox; "" where it has one."""
    with tempfile.TemporaryDirectory() as empty:
        return run(Path(empty), [])[1]


def run(checkout: Path, args: Sequence[str]) -> tuple[str, str]:
    """Run `stubs.py` in the sandbox: what it wrote, and why it did not come to its end ("" if it did)."""
    prefix = os.path.realpath(sys.base_prefix)
    shown = [path for path in _SYSTEM if os.path.lexists(path)] + ([prefix] if not prefix.startswith("/usr") else [])
    source = resources.files(__package__).joinpath("stubs.py").read_bytes()
    with tempfile.TemporaryDirectory(prefix="ci-tasks-sandbox-") as root, tempfile.TemporaryFile() as out:
        command = [*_UNSHARE, "--kill-child", "--", "/bin/sh", "-c", _SCRIPT, "sh", root, str(checkout), *shown, "--"]
        command += [os.path.realpath(sys.executable), "-S", "-", *args]
        streams: dict[str, Any] = {"stdout": out, "stderr": subprocess.PIPE}
        try:
            done = subprocess.run(command, input=source, env=_ENVIRONMENT, timeout=SECONDS, check=False, **streams)
            said = done.stderr.decode(errors="replace").strip().splitlines()
            problem = (said or [f"it ended with {done.returncode}"])[-1] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"it ran for more than {SECONDS} s"
        except OSError as error:
            problem = str(error)
        out.seek(0)
        return out.read().decode(errors="replace"), problem
