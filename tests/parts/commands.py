"""Commands of the program in this process, by the values of their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks import registry
from ci_tasks.cli import exit_handler, program
from ci_tasks.cli.commands import commands
from ci_tasks.cli.options import options_class
from ci_tasks.registry import Command

COMMANDS: Mapping[str, Command] = {command.name: command for command in commands()}


def run_command(name: str, **values: Any) -> int:
    """The exit code; what it prints, errors included, goes where the program prints it."""
    return exit_handler.run(lambda: program.run_command(name, values))


def options_of_command(name: str) -> type[Any]:
    """The dataclass that declares the options of a command."""
    return options_class(registry.load(COMMANDS[name].function))
