"""The file that a step writes its outputs into ($GITHUB_OUTPUT) → names and values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ci_tasks.errors import WorkflowError

_HEREDOC = re.compile(r"([^=]+?)<<(.+)")


def parse_outputs(text: str) -> dict[str, str]:
    """`name=value` lines and `name<<END … END` blocks, as GitHub's "Workflow commands" describe them.

    Raises WorkflowError for what makes GitHub fail the step: another line, or a block without its end.
    """
    outputs: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\n", text))
    for line in lines:
        if block := _HEREDOC.fullmatch(line):
            outputs[block[1]] = _block(lines, block[2], line)
        elif line.find("=") > 0:
            name, _, value = line.partition("=")
            outputs[name] = value
        elif line:
            raise WorkflowError("GITHUB_OUTPUT has a line that is neither `name=value` nor `name<<END`", text=line)
    return outputs


def _block(lines: Iterator[str], end: str, opening: str) -> str:
    body: list[str] = []
    for line in lines:
        if line == end:
            return "\n".join(body)
        body.append(line)
    raise WorkflowError(f"GITHUB_OUTPUT has no line {end!r}, which ends a block", text=opening)
