"""The group in which the runner announces a step: its script, inputs and environment.

    ##[group]Run docker run \\                  ##[group]Run actions/checkout@v4
    (cyan)docker run \\                         with:
    (cyan)  image:latest                         repository: owner/name
    shell: /usr/bin/bash -e {0}                 env:
    env:                                          NAME: value
      NAME: value                              ##[endgroup]
    ##[endgroup]

A test may print such a group too, and many programs print groups whose title begins with Run. So the line below the
title has to be one that the runner writes there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.ci_logs.parse.log_text import CYAN, printable_text, script_line

TITLE = b"##[group]Run "
END = b"##[endgroup]"
_ACTION = re.compile(r"(?:[\w.-]+/[\w./-]+@|\./|\.github/|docker://)\S*")
_SECTIONS = (b"with:", b"env:")
_ENTRY = re.compile(r"  ([^\s:][^:]{0,200}):(?: (.*))?", re.DOTALL)


@dataclass(frozen=True)
class StepHeader:
    """What a step's group says. `name` is GitHub's default name of the step, `uses` its action or ""."""

    name: str
    uses: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    script: str = ""
    env: dict[str, str] = field(default_factory=dict)


def begins(title: bytes, below: bytes, *, stamped: bool) -> bool:
    """Whether a group's title and the line below are the beginning of a step. In a log without timestamps the script
    may have lost its colour, and in our own logs the title is the step's name, so there every `Run` group is one."""
    first = title.removeprefix(TITLE).strip()
    if not stamped or below.startswith(CYAN) or below.strip() == first:
        return True
    return (below in _SECTIONS or below == END) and _ACTION.fullmatch(printable_text(first)) is not None


def parse_header(title: bytes, body: Sequence[tuple[bytes, bool]]) -> StepHeader:
    """The header of a step from its group's lines, each with whether it is a line of its own (not what a newline in a
    value made of one)."""
    name = printable_text(title.removeprefix(b"##[group]"))
    action = _ACTION.fullmatch(name.removeprefix("Run "))
    count = _script_lines(body)
    if action and count == 0:
        sections = _sections(body)
        return StepHeader(name, name.removeprefix("Run "), sections.get("with:", {}), env=sections.get("env:", {}))
    env = _sections(body[count:]).get("env:", {})
    script = "\n".join(script_line(line) for line, _ in body[:count])
    return StepHeader(name, script=script, env=env)


def _script_lines(body: Sequence[tuple[bytes, bool]]) -> int:
    """How many of the group's first lines are the script: those in cyan; where the colour is lost, those before the
    last `shell:`, since a script may have such a line as well."""
    if body and body[0][0].startswith(CYAN):
        return next((at for at, (line, _) in enumerate(body) if not line.startswith(CYAN)), len(body))
    if body and body[0][0] in _SECTIONS:
        return 0
    shells = [at for at, (line, _) in enumerate(body) if line.startswith(b"shell: ")]
    return shells[-1] if shells else len(body)


def _sections(body: Sequence[tuple[bytes, bool]]) -> dict[str, dict[str, str]]:
    """The indented entries below `with:` and `env:`. A value goes on in lines that the runner did not begin, and where
    that cannot be seen, in those that are no entry."""
    sections: dict[str, dict[str, str]] = {}
    entries: dict[str, str] | None = None
    last = ""
    for raw, own in body:
        if own and raw in _SECTIONS:
            entries = sections.setdefault(raw.decode(), {})
            last = ""
            continue
        line = printable_text(raw, 1 << 20)
        entry = _ENTRY.fullmatch(line) if own else None
        if entries is None:
            continue
        if entry:
            last = entry[1]
            entries[last] = entry[2] or ""
        elif last:
            entries[last] += "\n" + line
    return sections
