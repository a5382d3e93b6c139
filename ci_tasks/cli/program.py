"""The programs: `ci-tasks` anywhere, and `invoke` in a directory whose tasks.py calls `replace_invoke`.

Both have the same commands: references from the core and from every feature. Only the command that runs is loaded.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ci_tasks import __version__, debug_log, registry
from ci_tasks.cli import command_line, exit_handler
from ci_tasks.cli.commands import find
from ci_tasks.cli.options import build, options_class
from ci_tasks.errors import UsageError
from ci_tasks.safe_output import PROGRAM

if TYPE_CHECKING:
    from invoke.program import Program

_GARBAGE = 50_000  # new objects between two searches for garbage: imports make many, and no garbage


def main() -> NoReturn:
    """The program `ci-tasks`: the same commands, from any directory."""
    gc.set_threshold(_GARBAGE)
    code = run(sys.argv)
    gc.freeze()  # else Python looks through all loaded objects once more before it ends
    raise SystemExit(code)


def run(argv: Sequence[str]) -> int:
    """Execute a command line. Returns the exit code."""
    _, *words = debug_log.take_flag(argv)
    return exit_handler.run(lambda: _execute(words))


def _execute(words: Sequence[str]) -> int:
    if words[:1] == ["--complete"]:
        *before, current = words[2:] or [""]  # the script ends with the cursor's word
        print("\n".join(command_line.candidates(before, current)))
        return 0
    line = command_line.parse(words)
    asked, command = line.program.values, line.current
    help = asked.get("help", not asked)
    if shell := asked.get("print_completion_script"):
        option = command_line.PROGRAM_OPTIONS["print_completion_script"]
        print(command_line.SCRIPTS[option.convert("--print-completion-script", shell)], end="")
    elif "version" in asked:
        print(f"{PROGRAM} {__version__}")
    elif command is not line.program and "help" not in asked and "list" not in asked:
        return run_command(command.name, command.values)
    elif isinstance(help, str):
        print("\n".join(command_line.help_of_command(help)))
    else:
        print("\n".join(command_line.overview(with_options=help)))
    return 0


def run_command(name: str, values: Mapping[str, Any]) -> int:
    """Check the values of the command's options, by field name, and run it. Returns its exit code."""
    command = find(name)
    assert command is not None
    function = registry.load(command.function)
    try:
        code: int = function(build(options_class(function), values, name))
    except UsageError as error:
        error.hint = error.hint.replace("ci-tasks COMMAND ", f"ci-tasks {name} ")  # a command to type
        raise
    return code


def replace_invoke() -> None:
    """Make `invoke`, which is loading our tasks.py, continue as our program.

    This replaces one method, since a tasks.py can name neither another program nor another parser.
    """
    from invoke.program import Program

    def parse_tasks(program: Program) -> NoReturn:
        raise SystemExit(run(_line_of(program)))

    Program.parse_tasks = parse_tasks  # type: ignore[method-assign, assignment]


def _line_of(program: Program) -> list[str]:
    """The command line without the options that only invoke has."""
    name, asked = program.argv[0], program.args
    if asked.complete.value:  # invoke's own script; nothing runs
        return [name, "--complete"]
    own = [f"--{option}" for option in ("debug", "list") if asked[option].value]
    help = [f"--help={asked.help.value}"] if asked.help.value else []
    return [name, *own, *help, *program.core.unparsed]
