"""The exit codes: docs/programs.md has them in one table, from the mappings that the code of each command uses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ci_tasks.cli.commands import commands
from ci_tasks.cli.reference import exit_codes
from ci_tasks.errors import (
    EXIT_BLOCKED,
    EXIT_BUG,
    EXIT_CANCELLED,
    EXIT_CLOSED_PIPE,
    EXIT_USAGE,
    Blocked,
    CheckoutError,
    CiTasksError,
    ConfigError,
    InternalError,
    WorkflowError,
)
from ci_tasks.registry import Command

ROOT = Path(__file__).resolve().parents[2]
EVERY_COMMAND = {
    "done": 0,
    "an error on the command line, in hosts.yaml or in the workflow": EXIT_USAGE,
    "a bug of ci-tasks": EXIT_BUG,
    "blocked: the environment cannot do it": EXIT_BLOCKED,
    "interrupted": EXIT_CANCELLED,
    "the pipe of the output was closed": EXIT_CLOSED_PIPE,
}


def table(commands: Iterable[Command]) -> list[str]:
    """A markdown table: the codes of every command, then those of one command or of several alike."""
    names_by_codes: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for command in commands:
        if codes := tuple(exit_codes(command).items()):
            names_by_codes.setdefault(codes, []).append(f"`{command.name}`")
    rows = [(code, meaning, "every command") for meaning, code in EVERY_COMMAND.items()]
    for codes, names in names_by_codes.items():
        rows += [(code, meaning, ", ".join(names)) for meaning, code in codes]
    return [
        "| exit code | meaning | of |",
        "|---|---|---|",
        *(f"| {code} | {what} | {of} |" for code, what, of in rows),
    ]


def test_the_documents_have_the_table_of_the_code() -> None:
    text = "\n".join(table(commands()))
    assert f"\n\n{text}\n\n" in (ROOT / "docs/programs.md").read_text(), f"docs/programs.md lacks:\n{text}"


def test_the_table_has_the_codes_of_every_error() -> None:
    for error in (CheckoutError, ConfigError, WorkflowError, Blocked, InternalError):
        assert issubclass(error, CiTasksError)
        assert error.exit_code in EVERY_COMMAND.values(), error
