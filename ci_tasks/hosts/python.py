"""Finding the interpreter that CI's setup-python would have set up: one command, run on any host, and its parser."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from ci_tasks.planning.steps import version_matches

_TIMEOUT_S = 60
# Where version managers keep interpreters that are not on PATH; `{version}` is as 3.10.
_VERSION_MANAGERS = (
    "${{PYENV_ROOT:-$HOME/.pyenv}}/versions/{version}.*/bin/python",
    "$HOME/.local/share/uv/python/cpython-{version}.*/bin/python{version}",
    "/opt/hostedtoolcache/Python/{version}.*/x64/bin/python",
)


def find_python(version_spec: str) -> tuple[str, str]:
    """(path, version) on this machine of a Python that is `version_spec`, such as `3.10` or `3.10.14`; else our own.

    The caller compares versions; another one than wanted is a deviation, not an error.
    """
    version = sys.version.split()[0]
    if version_spec and version_matches(version_spec, version):
        return sys.executable, version
    own = (os.path.realpath(sys.executable), version)
    if not version_spec:
        return own
    try:
        done = subprocess.run(find_python_command(version_spec), capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return own
    return choose_python(version_spec, done.stdout, own)


def find_python_command(version_spec: str) -> list[str]:
    """Prints `version path` of every interpreter that may be `version_spec`. -I: `import platform` must not load the
    platform.py of a checkout in which we are."""
    minor = re.match(r"\d+\.\d+", version_spec)
    names = ["python3"]
    if minor:
        names = [f"python{minor[0]}", "python3", *(path.format(version=minor[0]) for path in _VERSION_MANAGERS)]
    script = f"""for name in {" ".join(names)}; do
  path=$(command -v "$name") || continue
  found=$("$path" -I -c 'import platform, sys; print(platform.python_version(), sys.executable)' 2> /dev/null) ||
    continue
  echo "$found"
done
exit 0"""
    return ["/bin/sh", "-c", script]


def choose_python(version_spec: str, output: str, own: tuple[str, str]) -> tuple[str, str]:
    """(path, version) of the newest interpreter for `version_spec` in the command's output, else the host's `own`."""
    lines = [line.partition(" ") for line in output.splitlines()]
    matching = [(path, version) for version, _, path in lines if path and version_matches(version_spec, version)]
    return max(matching, key=lambda interpreter: _numbers(interpreter[1])) if matching and version_spec else own


def _numbers(version: str) -> list[int]:
    """3.10.14 is newer than 3.10.9, though not as text."""
    return [int(digits) for digits in re.findall(r"\d{1,9}", version)]
