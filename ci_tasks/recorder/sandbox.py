"""A process that sees the interpreter, a read-only checkout and an empty /tmp and home, and nothing else.

Linux namespaces without privileges: a root of its own (a small tmpfs), no network, own processes, no capabilities, and
limits of memory, time and file size.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

ROOT = "/checkout"  # where the process sees it
SECONDS, _MEMORY_KIB, _TMPFS, _FILE_BLOCKS = 30, 1 << 20, "64m", 1 << 15  # blocks of 512 bytes
_TOOLS = ("unshare", "mount", "chroot", "setpriv")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix", "/etc/ld.so.cache")
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}

# Arguments: the new root, the checkout, the system's directories, "--", the command.
_SCRIPT = f"""
set -eu
root=$1 checkout=$2; shift 2
mount -t tmpfs -o size={_TMPFS},mode=755,nosuid,nodev sandbox "$root"
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
mkdir -p "$root/dev"; : > "$root/dev/null"; mount --bind /dev/null "$root/dev/null"
mkdir -p "$root/tmp" "$root/root"
cd "$root"
ulimit -c 0; ulimit -n 256; ulimit -t {SECONDS}; ulimit -v {_MEMORY_KIB}; ulimit -f {_FILE_BLOCKS}
exec chroot "$root" /bin/sh -c 'cd {ROOT} && exec setpriv --no-new-privs --bounding-set=-all \\
    --inh-caps=-all "$@"' sh "$@"
"""


@cache
def unavailable_reason() -> str:
    """Why this machine has no sandbox; "" where it has one."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool, path=_ENVIRONMENT["PATH"])]
    if missing:
        return f"{', '.join(missing)} not found"
    with tempfile.TemporaryDirectory() as empty:
        _, problem = run(Path(empty), [])
    return problem


def run(checkout: Path, args: Sequence[str]) -> tuple[str, str]:
    """Run `stubs.py` in the sandbox: what it wrote, and why it did not come to its end ("" if it did)."""
    python = os.path.realpath(sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    shown = [path for path in _SYSTEM if os.path.lexists(path)]
    if not prefix.startswith("/usr"):
        shown.append(prefix)
    namespaces = ["--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    with tempfile.TemporaryDirectory(prefix="ci-tasks-sandbox-") as root, tempfile.TemporaryFile() as out:
        command = ["unshare", *namespaces, "--", "/bin/sh", "-c", _SCRIPT, "sh", root, str(checkout), *shown, "--"]
        try:
            done = subprocess.run(
                [*command, python, "-S", "-", *args],
                input=resources.files(__package__).joinpath("stubs.py").read_bytes(),
                stdout=out,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                timeout=SECONDS,
                check=False,
            )
            problem = "" if done.returncode == 0 else _reason(done.returncode, done.stderr)
        except subprocess.TimeoutExpired:
            problem = f"it ran for more than {SECONDS} s"
        except OSError as error:
            return "", str(error)
        out.seek(0)
        return out.read().decode(errors="replace"), problem


def _reason(code: int, stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with {code}"
