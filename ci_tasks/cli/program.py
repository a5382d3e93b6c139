"""The programs: `ci-tasks` anywhere, and `invoke` in a directory whose tasks.py calls `replace_invoke`.

Both have the same commands: references from the core and from every feature, of which only the one that runs is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn, get_type_hints

from ci_tasks import debug_log, registry
from ci_tasks.cli import exit_handler
from ci_tasks.cli.commands import COMMANDS, HEADINGS
from ci_tasks.cli.deferred_modules import deferred
from ci_tasks.errors import EXIT_USAGE, UsageError
from ci_tasks.registry import Command

with deferred("unittest.mock", "invoke.vendor.yaml"):
    from invoke.collection import Collection
    from invoke.context import Context
    from invoke.exceptions import Exit
    from invoke.parser.argument import Argument
    from invoke.parser.context import ParserContext
    from invoke.parser.parser import ParseResult
    from invoke.program import Program
    from invoke.tasks import Task
    from invoke.terminals import pty_size

NAME = "ci-tasks"


class CommandTask(Task[Any]):
    """A command as a task of invoke. Its module is loaded when its arguments, its help or its result are needed."""

    def __init__(self, command: Command) -> None:
        super().__init__(self.run, name=command.name, positional=())
        self.__doc__ = command.summary
        self.command = command

    @cached_property
    def function(self) -> Any:
        return registry.load(self.command.function)

    @cached_property
    def options(self) -> type:
        """The dataclass that annotates the function's only parameter."""
        hints = get_type_hints(self.function)
        options: type = next(hint for name, hint in hints.items() if name != "return")
        return options

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        from ci_tasks.cli.parser import arguments

        return arguments(self.options)

    def run(self, _context: Context, **values: Any) -> None:
        """Check the options, run the command, and leave with its exit code."""

        def command() -> int:
            from ci_tasks.cli.options import build

            code: int = self.function(build(self.options, values, self.name))
            return code

        if code := exit_handler.run(command):
            raise Exit(code=code)


def commands() -> list[Command]:
    return [*COMMANDS, *(command for feature in registry.features() for command in feature.commands)]


namespace = Collection(*(CommandTask(command) for command in commands()))


class CommandLine(Program):
    """Invoke's program with our parser, help and completion. `is_invoke`: it was started as `invoke`."""

    def __init__(self, *, is_invoke: bool = False) -> None:
        from ci_tasks import __version__

        self.is_invoke = is_invoke
        self.own_name = "invoke" if is_invoke else NAME
        super().__init__(name=self.own_name, binary=self.own_name, namespace=namespace, version=__version__)

    @property
    def tasks_by_name(self) -> Mapping[str, CommandTask]:
        tasks: Mapping[str, CommandTask] = namespace.tasks
        return tasks

    def core_args(self) -> list[Argument]:
        return [*super().core_args(), *(self.task_args() if self.is_invoke else [])]

    def parse_core(self, argv: list[str] | None) -> None:
        dont_write_bytecode = sys.dont_write_bytecode
        super().parse_core(argv)
        # Invoke turns byte code off to keep the directory of a tasks.py clean. We are an installed package.
        sys.dont_write_bytecode = dont_write_bytecode

    def parse_core_args(self) -> None:
        """Parse the whole line; `parse_tasks` then has nothing to do."""
        from ci_tasks.cli import parser

        try:
            result = parser.parse(self.argv[1:], self.initial_context, self.find_command, self.tasks_by_name)
        except UsageError as error:
            self.fail(error)
        self.core = ParseResult(result[:1])
        self.core.remainder = result.remainder
        self.tasks = ParseResult(result[1:])
        if shell := self.args["print-completion-script"].value:
            self.print_completion_script(shell)

    def find_command(self, name: str) -> ParserContext | None:
        task = self.tasks_by_name.get(name)
        if task is None:
            return None
        return ParserContext(name=name, args=task.get_arguments())

    def parse_tasks(self) -> None:
        pass

    def parse_cleanup(self) -> None:
        command = self.args.help.value
        if isinstance(command, str):
            self.print_command_help(command)
            raise Exit
        if self.args.complete.value:
            self.complete()
        super().parse_cleanup()

    def complete(self) -> NoReturn:
        """Print the candidates. Our own scripts leave the program's name out, invoke's pass the whole line."""
        from ci_tasks.cli.completion import candidates, candidates_without_cursor

        argv = self.argv[self.argv.index("--") + 1 :]
        if self.is_invoke:
            offered = candidates_without_cursor(argv[1:], self.initial_context, self.find_command, self.tasks_by_name)
        else:
            current = argv[-1] if argv else ""
            offered = candidates(argv[:-1], current, self.initial_context, self.find_command, self.tasks_by_name)
        print("\n".join(offered))
        raise Exit

    def print_completion_script(self, shell: str) -> NoReturn:
        from ci_tasks.cli.completion import script

        try:
            print(script(shell), end="")
        except UsageError as error:
            self.fail(error)
        raise Exit

    def list_flat(self) -> None:
        from ci_tasks.cli.help import groups

        for heading, columns in groups(commands(), HEADINGS).items():
            print(f"{heading}:\n")
            self.print_columns(columns)

    def print_help(self) -> None:
        from ci_tasks.cli.help import CORE_OPTIONS

        print(f"Usage: {self.binary} COMMAND [OPTIONS]\n")
        self.list_flat()
        print("Options:\n")
        self.print_columns(CORE_OPTIONS)

    def print_command_help(self, name: str) -> None:
        from ci_tasks.cli import help
        from ci_tasks.cli.options import options_of
        from ci_tasks.cli.parser import LIST_HINT, suggestion
        from ci_tasks.safe_output import terminal_width

        task = self.tasks_by_name.get(name)
        if task is None:
            self.fail(UsageError(f"unknown command {name!r}{suggestion(name, self.tasks_by_name)}", hint=LIST_HINT))
        options = options_of(task.options)
        print(f"Usage: {self.binary} {help.usage(name, options)}\n")
        width = terminal_width() or pty_size()[0]
        print("\n".join([*help.description(task.command, task.function, self.own_name, width), ""]))
        for heading, columns in help.columns(options).items():
            print(f"{heading}:\n")
            self.print_columns(columns)

    def fail(self, error: UsageError) -> NoReturn:
        raise Exit(f"{NAME}: {error}", code=EXIT_USAGE)


def main() -> None:
    """The program `ci-tasks`: the same commands, from any directory."""
    raise SystemExit(_run(CommandLine(), sys.argv))


def _run(program: CommandLine, argv: list[str]) -> int:
    from ci_tasks.cli.help import typed_program

    arguments = debug_log.take_flag(argv)
    typed = typed_program(argv[0], program.own_name)
    return exit_handler.run(lambda: exit_handler.exit_code_of(lambda: program.run(arguments)), typed)


def replace_invoke() -> None:
    """Make `invoke`, which is loading our tasks.py, continue as our program.

    This replaces one method, since a tasks.py can name neither another program nor another parser; see
    `ci_tasks.cli.parser` for what invoke's own parser lacks.
    """

    def parse_tasks(program: Program) -> NoReturn:
        raise SystemExit(_run(CommandLine(is_invoke=True), program.argv))

    Program.parse_tasks = parse_tasks  # type: ignore[method-assign, assignment]
