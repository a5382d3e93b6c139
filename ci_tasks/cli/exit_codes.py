"""The exit codes of all commands in one table: what a program that calls them has to know.

Each command names the mapping from its words to codes, which is the one that its code uses; what any command may end
with is here. docs/programs.md has this table, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks import registry
from ci_tasks.errors import EXIT_BLOCKED, EXIT_BUG, EXIT_CANCELLED, EXIT_CLOSED_PIPE, EXIT_USAGE
from ci_tasks.registry import Command

EVERY_COMMAND = {
    "done": 0,
    "an error on the command line, in hosts.yaml or in the workflow": EXIT_USAGE,
    "a bug of ci-tasks": EXIT_BUG,
    "blocked: the environment cannot do it": EXIT_BLOCKED,
    "interrupted": EXIT_CANCELLED,
    "the pipe of the output was closed": EXIT_CLOSED_PIPE,
}


def of_command(command: Command) -> dict[str, int]:
    """Word → exit code: what `command` adds to the codes of every command."""
    return dict(registry.load(command.exit_codes)) if command.exit_codes else {}


def table(commands: Iterable[Command]) -> list[str]:
    """A markdown table: the codes of every command, then those of one command or of several alike."""
    names_by_codes: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for command in commands:
        if codes := tuple(of_command(command).items()):
            names_by_codes.setdefault(codes, []).append(f"`{command.name}`")
    rows = [(code, meaning, "every command") for meaning, code in EVERY_COMMAND.items()]
    for codes, names in names_by_codes.items():
        rows += [(code, meaning, ", ".join(names)) for meaning, code in codes]
    return [
        "| exit code | meaning | of |",
        "|---|---|---|",
        *(f"| {code} | {what} | {of} |" for code, what, of in rows),
    ]
