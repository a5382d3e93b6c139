"""Finding the interpreter that CI's setup-python would have set up: one command, run on any host, and its parser."""

from __future__ import annotations

import re
import sys

from ci_tasks.hosts.queries import QueryRunner
from ci_tasks.planning.steps import version_matches

_TIMEOUT_S = 20.0
OWN = sys.executable, sys.version.split()[0]
# By name, and where version managers keep interpreters that are not on PATH. -I: `import platform` must not load the
# platform.py of a checkout in which we are.
_SCRIPT = """for name in python3 python$1 "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python \
    "$HOME/.local/share/uv/python/cpython-$1".*/bin/python$1 /opt/hostedtoolcache/Python/$1.*/x64/bin/python; do
  path=$(command -v "$name") || continue
  found=$("$path" -I -c 'import platform, sys; print(platform.python_version(), sys.executable)' 2> /dev/null) &&
    echo "$found"
done
exit 0"""


def find_python(version_spec: str, host: QueryRunner, own: tuple[str, str] = OWN) -> tuple[str, str]:
    """(path, version) of the host's newest Python that is `version_spec`, such as `3.10` or `3.10.14`; else its `own`.

    The caller compares versions; another one than wanted is a deviation, not an error.
    """
    if not version_spec or version_matches(version_spec, own[1]):
        return own
    answer = host.run_queries({"python": find_python_command(version_spec)}, _TIMEOUT_S)["python"]
    lines = [line.partition(" ") for line in answer.out.splitlines()]
    matching = [(path, version) for version, _, path in lines if path and version_matches(version_spec, version)]
    return max(matching, key=lambda found: [int(digits) for digits in re.findall(r"\d{1,9}", found[1])], default=own)


def find_python_command(version_spec: str) -> list[str]:
    """Prints `version path` of every interpreter that may be `version_spec`."""
    minor = re.match(r"\d+\.\d+", version_spec)
    return ["/bin/sh", "-c", _SCRIPT, "sh", minor[0] if minor else ""]
