"""What invoke's parser lacks for us: an optional positional (`jobs [LABEL]`), and exit code 2 for a wrong word.

Invoke has no hook for them, so three methods of its parse machine are replaced, for the commands of this process.
`tests/test_cli.py` notices when a new invoke no longer has them.
"""

from __future__ import annotations

from typing import NoReturn

from invoke.exceptions import Exit
from invoke.parser.parser import ParseMachine

from ci_tasks.errors import EXIT_USAGE

# (command, argument): where invoke would complain of a missing positional, these get their empty value instead.
_MAY_BE_MISSING = {("jobs", "label")}
_HINT = "`invoke --list` names the commands, `invoke --help COMMAND` the flags of one"

_complete_context = ParseMachine.complete_context
_see_positional_arg = ParseMachine.see_positional_arg


def _complete(machine: ParseMachine) -> None:
    context = machine.context
    for argument in context.missing_positional_args if context else []:
        if (context.name, argument.name) in _MAY_BE_MISSING:
            argument.set_value("", cast=False)
    _complete_context(machine)


def _see_positional(machine: ParseMachine, value: str) -> None:
    if value == "--help":  # invoke would take it for a label; with --help of a command, nothing else is needed
        machine.initial.flags[value].value = machine.context.name
        for argument in machine.context.missing_positional_args:
            argument.set_value("", cast=False)
        return
    if value.startswith("-") and value != "-":  # invoke would take a misspelt flag for a label; - is standard input
        _error(machine, f"{machine.context.name} has no flag {value}")
    _see_positional_arg(machine, value)


def _error(_machine: ParseMachine, message: str) -> NoReturn:
    raise Exit(f"ci-tasks: {message}\n{_HINT}", code=EXIT_USAGE)


def install() -> None:
    """Make invoke's parser behave so, once or again."""
    ParseMachine.complete_context = _complete  # type: ignore[method-assign, assignment]
    ParseMachine.see_positional_arg = _see_positional  # type: ignore[method-assign, assignment]
    ParseMachine.error = _error  # type: ignore[method-assign, assignment]
