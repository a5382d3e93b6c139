"""Overrides added to a hosts.yaml that a person wrote: everything else in it stays, comments too. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ci_tasks import yaml_lines

_KEY = re.compile(r"^overrides:[ \t]*(?P<value>\[\][ \t]*|~[ \t]*|null[ \t]*)?(?P<comment>#.*)?$", re.MULTILINE)
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
    if "overrides" not in before:
        apart = "" if not text or text.endswith("\n") else "\n"
        after = f"{text}{apart}{block(entries, why)}"
    elif key:
        item = _ITEM.search(text, key.end())
        indent = item[1] if item and before["overrides"] else "  "
        lines = [f"{indent}# by `ci-tasks setup`: {why}", *(f"{indent}- {entry}" for entry in entries)]
        comment = f" {key['comment']}" if key["comment"] else ""
        after = "\n".join([f"{text[: key.start()]}overrides:{comment}", *lines]) + text[key.end() :]
        after += "" if after.endswith("\n") else "\n"
    else:
        return None
    expected = {**before, "overrides": [*_list(entries), *(before.get("overrides") or [])]}
    return after if _tree(after) == expected else None


def _list(entries: Sequence[str]) -> list[Any]:
    return [yaml_lines.load(entry) for entry in entries]


def _tree(text: str) -> dict[str, Any] | None:
    """The file's content; None where it is no mapping."""
    try:
        tree = yaml_lines.load(text)
    except yaml_lines.YamlError:
        return None
    return {} if tree is None else tree if isinstance(tree, dict) else None
