"""Finding the `docker run` in a step's script, to learn which image CI uses. Never used to run anything."""

from __future__ import annotations

import re
import shlex

from ci_tasks.runner.docker_argv import DockerArgvError, DockerRun, parse_run

_START = re.compile(r"(?m)(?:^|[;&|(]\s*|\bsudo\s+|\bexec\s+|\bthen\s+)\s*docker\s+(?:container\s+)?run\b")
_ENDS = frozenset("\n;&|)")


def docker_run(script: str) -> DockerRun | None:
    """The first `docker run` of a bash script, its words as bash would split them, variables unexpanded; or None."""
    found = _START.search(script)
    if not found:
        return None
    command = _simple_command(script[found.end() :])
    try:
        return parse_run(["run", *shlex.split(command)])
    except (ValueError, DockerArgvError):
        return None


def _simple_command(text: str) -> str:
    """`text` up to the unquoted character that ends a simple command, line continuations joined."""
    text = text.replace("\\\n", " ")
    quote = ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _ENDS:
            return text[:position]
    return text
