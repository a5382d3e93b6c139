"""The file that a step writes its outputs into ($GITHUB_OUTPUT) → names and values."""

from __future__ import annotations

import re

_HEREDOC = re.compile(r"([^=<]+)<<(.+)")


def parse_outputs(text: str) -> dict[str, str]:
    """`name=value` lines and `name<<END … END` blocks, as GitHub's "Workflow commands" describe them."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        block = _HEREDOC.fullmatch(line)
        if block and ("=" not in line or line.index("<<") < line.index("=")):
            body = []
            for inner in lines:
                if inner == block[2]:
                    break
                body.append(inner)
            found[block[1]] = "\n".join(body)
        elif "=" in line:
            name, _, value = line.partition("=")
            found[name] = value
    return found
