"""The exit codes: one table, which the documents show and the code uses."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.cli import exit_codes
from ci_tasks.cli.program import commands
from ci_tasks.errors import Blocked, CheckoutError, CiTasksError, ConfigError, InternalError, WorkflowError

ROOT = Path(__file__).resolve().parents[2]


def test_the_documents_have_the_table_of_the_code() -> None:
    table = "\n".join(exit_codes.table(commands()))
    assert f"\n\n{table}\n\n" in (ROOT / "docs/programs.md").read_text(), f"docs/programs.md lacks:\n{table}"


def test_the_table_has_the_codes_of_every_error() -> None:
    for error in (CheckoutError, ConfigError, WorkflowError, Blocked, InternalError):
        assert issubclass(error, CiTasksError)
        assert error.exit_code in exit_codes.EVERY_COMMAND.values(), error


def test_a_row_says_what_the_code_means_and_for_which_commands() -> None:
    table = exit_codes.table(commands())
    assert "| 1 | vacuous | `run`, `remote`, `attach`, `retry`, `setup` |" in table
    assert "| 3 | different failure | `reproduce` |" in table
