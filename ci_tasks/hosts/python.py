"""Finding the interpreter that CI's setup-python would have set up: one command, run on any host, and its parser."""

from __future__ import annotations

import re
import sys

from ci_tasks.hosts.queries import QueryRunner
from ci_tasks.planning.steps import version_matches

_TIMEOUT_S = 20.0
OWN = sys.executable, sys.version.split()[0]
# Where version managers keep interpreters that are not on PATH; `{version}` is as 3.10.
_VERSION_MANAGERS = (
    "${{PYENV_ROOT:-$HOME/.pyenv}}/versions/{version}.*/bin/python",
    "$HOME/.local/share/uv/python/cpython-{version}.*/bin/python{version}",
    "/opt/hostedtoolcache/Python/{version}.*/x64/bin/python",
)


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
    """Prints `version path` of every interpreter that may be `version_spec`. -I: `import platform` must not load the
    platform.py of a checkout in which we are."""
    minor = re.match(r"\d+\.\d+", version_spec)
    names = ["python3"]
    if minor:
        names = [f"python{minor[0]}", "python3", *(path.format(version=minor[0]) for path in _VERSION_MANAGERS)]
    script = f"""for name in {" ".join(names)}; do
  path=$(command -v "$name") || continue
  found=$("$path" -I -c 'import platform, sys; print(platform.python_version(), sys.executable)' 2> /dev/null) &&
    echo "$found"
done
exit 0"""
    return ["/bin/sh", "-c", script]
