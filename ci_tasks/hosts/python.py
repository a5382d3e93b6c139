"""Finding the interpreter that CI's setup-python would have set up."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys

from ci_tasks.plan.steps import version_matches

_SHOW = "import platform; print(platform.python_version())"
# Where version managers keep interpreters that are not on PATH; `{version}` is as 3.10.
_KEPT = (
    "{pyenv}/versions/{version}.*/bin/python",
    "~/.local/share/uv/python/cpython-{version}.*/bin/python{version}",
    "/opt/hostedtoolcache/Python/{version}.*/x64/bin/python",
)


def find(wanted: str) -> tuple[str, str]:
    """(path, version) of a Python that is `wanted`, such as `3.10` or `3.10.14`; of our own where there is none.

    The caller compares versions; another one than wanted is a deviation, not an error.
    """
    for path in _candidates(wanted):
        version = _version(path)
        if version and version_matches(wanted, version):
            return path, version
    return os.path.realpath(sys.executable), _version(sys.executable) or sys.version.split()[0]


def question(wanted: str) -> list[str]:
    """What to ask another host: it prints `version path` of every interpreter that may be `wanted`."""
    found = re.match(r"\d+\.\d+", wanted)
    names = [f"python{found[0]}", "python3"] if found else ["python3"]
    patterns = [kept.format(version=found[0], pyenv="${PYENV_ROOT:-$HOME/.pyenv}") for kept in _KEPT] if found else []
    places = " ".join(pattern.replace("~", "$HOME") for pattern in patterns)
    text = f"""for name in {" ".join(names)} {places}; do
  path=$(command -v "$name") || continue
  "$path" -c 'import platform, sys; print(platform.python_version(), sys.executable)' 2> /dev/null
done
exit 0"""
    return ["sh", "-c", text]


def choose(wanted: str, said: str, own: tuple[str, str]) -> tuple[str, str]:
    """(path, version) of the interpreter for `wanted` among the answers to `question`, else the host's `own`."""
    answers = [line.partition(" ") for line in said.splitlines()]
    right = [(path, version) for version, _, path in answers if path and version_matches(wanted, version)]
    return max(right, key=lambda one: _numbers(one[1])) if right and wanted else own


def _candidates(wanted: str) -> list[str]:
    found = re.match(r"\d+\.\d+", wanted)
    if not found:
        return [sys.executable] if wanted else []
    version = found[0]
    on_path = [path for path in (shutil.which(f"python{version}"), shutil.which("python3")) if path]
    pyenv = os.environ.get("PYENV_ROOT", "~/.pyenv")
    kept = [os.path.expanduser(pattern.format(version=version, pyenv=pyenv)) for pattern in _KEPT]
    newest_first = (path for pattern in kept for path in sorted(glob.glob(pattern), key=_numbers, reverse=True))
    return list(dict.fromkeys([sys.executable, *on_path, *newest_first]))


def _numbers(path: str) -> list[int]:
    """3.10.14 is newer than 3.10.9, though not as text."""
    return [int(digits) for digits in re.findall(r"\d+", path)]


def _version(path: str) -> str | None:
    """What the interpreter says of itself; None for one that cannot start (pyenv's shims for versions not chosen)."""
    try:
        done = subprocess.run([path, "-c", _SHOW], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
