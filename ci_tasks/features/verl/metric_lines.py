"""The line that verl's console logger writes for each step: `step:3 - actor/pg_loss:0.1 - …`."""

from __future__ import annotations

import re

from ci_tasks.logs.lines import visible
from ci_tasks.registry import MetricFormat

LONGEST = 1 << 16  # characters of a line that are read: a step's metrics are several thousand
STEP = re.compile(r"(?:^|\] ?)step:(\d+) - (.*)$")
_RAY = re.compile(r"^\(([\w.:@/-]{1,80} pid=\d+(?:, ip=[\w.:]+)?)\) ?")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")  # Ray's, behind what other workers print too
_NUMBER = re.compile(r"^(?:np\.\w+\()?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))\)?$", re.IGNORECASE)
_MOST = 400


def of_actor(text: str) -> tuple[str, str]:
    """(who, text) of a line between what Ray puts around it; who is "" for one that has no prefix."""
    match = _RAY.match(text)
    return (match[1], _REPEATED.sub("", text[match.end() :])) if match else ("", text)


def values(pairs: str) -> dict[str, float | None]:
    """Each metric of a step; None where its value is no number."""
    found: dict[str, float | None] = {}
    for pair in pairs.split(" - ")[:_MOST]:
        name, colon, text = pair.strip().rpartition(":")
        if colon:
            number = _NUMBER.match(text.strip())
            try:
                found[name.strip()] = float(number[1]) if number else None
            except ValueError:
                found[name.strip()] = None
    return found


def read(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The step and its metrics; None for another line."""
    match = STEP.search(of_actor(visible(line, LONGEST))[1])
    if match is None:
        return None
    return int(match[1]), {name: value for name, value in values(match[2]).items() if value is not None}


FORMAT = MetricFormat(rb"step:\d+ - ", read)
