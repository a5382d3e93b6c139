"""The programs: `ci-tasks` anywhere, and `invoke` in a directory whose tasks.py calls `replace_invoke`.

Both have the same commands: references from the core and from every feature, of which only the one that runs is loaded.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ci_tasks import __version__, debug_log, registry
from ci_tasks.cli import exit_handler
from ci_tasks.registry import Command
from ci_tasks.safe_output import PROGRAM

if TYPE_CHECKING:
    from invoke.program import Program

_INVOKE = "invoke"
_GARBAGE = 50_000  # new objects between two searches for garbage: imports make many, and no garbage


def main() -> NoReturn:
    """The program `ci-tasks`: the same commands, from any directory."""
    gc.set_threshold(_GARBAGE)
    code = run(sys.argv)
    gc.freeze()  # else Python looks through all that is loaded once more before it ends
    raise SystemExit(code)


def run(argv: Sequence[str], program: str = PROGRAM) -> int:
    """Execute a command line. Returns the exit code."""
    _, *words = debug_log.take_flag(argv)
    return exit_handler.run(lambda: _execute(words, program), typed_program(argv[0], program))


def _execute(words: Sequence[str], program: str) -> int:
    if words[:1] == ["--complete"]:
        print("\n".join(_candidates(words[2:], program)))
        return 0
    from ci_tasks.cli.parser import parse

    first, *commands = parse(words)
    asked = first.values
    if shell := asked.get("print_completion_script"):
        from ci_tasks.cli.completion import script

        print(script(shell), end="")
    elif "version" in asked:
        print(f"{PROGRAM} {__version__}")
    elif commands and "help" not in asked and "list" not in asked:
        from ci_tasks.cli.commands import find

        codes = (run_command(command, parsed.values) for parsed in commands if (command := find(parsed.name)))
        return next((code for code in codes if code), 0)
    else:
        from ci_tasks.cli import help

        name = asked.get("help", not asked)
        lines = help.of_command(name, program) if isinstance(name, str) else help.overview(program if name else "")
        print("\n".join(lines))
    return 0


def run_command(command: Command, values: Mapping[str, Any]) -> int:
    """Check the values of its options, by field name, and run it. Returns its exit code."""
    from ci_tasks.cli.options import build, options_class

    function = registry.load(command.function)
    code: int = function(build(options_class(function), values, command.name))
    return code


def _candidates(words: Sequence[str], program: str) -> list[str]:
    """Our own scripts leave the program's name out and end with the word at the cursor, invoke's passes the whole
    line."""
    from ci_tasks.cli.completion import candidates, candidates_without_cursor

    if program == _INVOKE:
        return candidates_without_cursor(words[1:])
    return candidates(words[:-1], words[-1] if words else "")


def typed_program(argv0: str, name: str) -> str:
    """How a person calls our program `name` after having typed `argv0`, it or one beside it: `.venv/bin/ci-tasks` where
    PATH does not lead to it."""
    beside = os.path.join(os.path.dirname(argv0), name)
    if os.sep not in argv0 or not os.path.isfile(beside):
        return name
    on_path = (os.path.join(directory, name) for directory in os.get_exec_path())
    first = next((path for path in on_path if os.path.isfile(path) and os.access(path, os.X_OK)), None)
    if first is not None and os.path.samefile(first, beside):
        return name
    import shlex

    return shlex.quote(beside)


def replace_invoke() -> None:
    """Make `invoke`, which is loading our tasks.py, continue as our program.

    This replaces one method, since a tasks.py can name neither another program nor another parser.
    """
    from invoke.program import Program

    def parse_tasks(program: Program) -> NoReturn:
        raise SystemExit(run(_line_of(program), _INVOKE))

    Program.parse_tasks = parse_tasks  # type: ignore[method-assign, assignment]


def _line_of(program: Program) -> list[str]:
    """The command line without the options that only invoke has."""
    name, *words = program.argv
    asked = program.args
    if asked.complete.value:
        return [name, *words[words.index("--complete") :]]
    own = [f"--{option}" for option in ("debug", "list") if asked[option].value]
    help = [f"--help={asked.help.value}"] if asked.help.value else []
    return [name, *own, *help, *program.core.unparsed]
