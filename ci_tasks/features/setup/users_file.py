"""Overrides added to a hosts.yaml that a person wrote: everything else in it stays, comments too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci_tasks import yaml_lines
from ci_tasks.agent.files import replace_file

_KEY = re.compile(r"^overrides:[ \t]*(?:#.*)?$", re.MULTILINE)
_ITEM = re.compile(r"^([ ]*)- ", re.MULTILINE)


def block(entries: Sequence[str], why: str) -> str:
    """The overrides as a hosts.yaml of their own."""
    return "\n".join(["overrides:", f"  # by `ci-tasks setup`: {why}", *(f"  - {entry}" for entry in entries)]) + "\n"


def with_overrides(text: str, entries: Sequence[str], why: str) -> str | None:
    """The text with these entries before the others. None where that cannot be done without changing the rest."""
    before = _tree(text)
    if before is None:
        return None
    key = _KEY.search(text)
    item = _ITEM.search(text, key.end()) if key else None
    if "overrides" not in before:
        line_end = "\n" if text and not text.endswith("\n") else ""
        after = f"{text}{line_end}{block(entries, why)}"
    elif key and item:
        lines = [f"# by `ci-tasks setup`: {why}", *(f"- {entry}" for entry in entries)]
        after = text[: key.end()] + "".join(f"\n{item[1]}{line}" for line in lines) + text[key.end() :]
    else:
        return None
    added = [yaml_lines.load(entry) for entry in entries]
    return after if _tree(after) == {**before, "overrides": [*added, *(before.get("overrides") or [])]} else None


def write(file: Path, text: str) -> None:
    """The file appears whole, with the mode that it had; of a link, what it leads to."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = file.stat().st_mode if file.exists() else 0o644
    replace_file(str(file), text.encode())
    file.chmod(mode)


def _tree(text: str) -> dict[str, Any] | None:
    """The file's content; None where it is no mapping."""
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError:
        return None
    return {} if tree is None else tree if isinstance(tree, dict) else None
