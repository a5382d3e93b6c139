"""Overrides added to a hosts.yaml that a person wrote: everything else in it stays, comments too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ci_tasks import yaml_lines
from ci_tasks.agent.files import replace_file


def add(file: Path, entries: Sequence[str], why: str) -> bool:
    """Add the overrides to the user's file; print them if it has overrides already. Returns whether it did."""
    if not entries:
        print("\nCI's install steps work here as they are: there is nothing to write")
        return False
    block = "\n  ".join(["overrides:", f"# by `ci-tasks setup`: {why}", *(f"- {entry}" for entry in entries)]) + "\n"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    after = before + ("\n" if before and not before.endswith("\n") else "") + block
    print(f"\n{block}", flush=True)
    if not _adds_only(before, after):
        print(f"{file} has overrides already, or another form: paste these lines there")
        return False
    write(file, after)
    print(f"added to {file}")
    return True


def write(file: Path, text: str) -> None:
    """The file appears whole, with the mode that it had; of a link, what it leads to."""
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = file.stat().st_mode if file.exists() else 0o644
    replace_file(str(file), text.encode())
    file.chmod(mode)


def _adds_only(before: str, after: str) -> bool:
    """Whether the file keeps what it had, and gets overrides that it did not have."""
    try:
        old, new = yaml_lines.load(before) or {}, yaml_lines.load(after)
    except yaml_lines.YamlError:
        return False
    return isinstance(old, dict) and isinstance(new, dict) and {**new, **old} == new and "overrides" not in old
