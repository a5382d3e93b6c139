"""What invoke's parser lacks for us: an optional positional (`jobs [LABEL]`), and clear words with exit code 2 for
what it does not understand: the nearest command or flag, a flag given twice, a flag without its value.

Invoke has no hook for them, so methods of its parse machine are replaced, for the commands of this process.
`tests/test_parser.py` notices when a new invoke no longer has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from invoke.exceptions import Exit
from invoke.parser.parser import ParseMachine
from invoke.program import Program

from ci_tasks.errors import EXIT_USAGE, printable

# (command, argument): where invoke would complain of a missing positional, these get their empty value instead.
_MAY_BE_MISSING = {("jobs", "label")}
_HINT = "`invoke --list` names the commands, `invoke --help COMMAND` the flags of one"
_SEVERAL = {"host": "--host A,B", "only": "--only A,B", "status": "--status A,B"}

_complete_context = ParseMachine.complete_context
_see_positional_arg = ParseMachine.see_positional_arg
_handle_token = ParseMachine.handle
_clean_up = Program.parse_cleanup


def install() -> None:
    """Make invoke's parser behave so, once or again."""
    ParseMachine.complete_context = _complete  # type: ignore[method-assign, assignment]
    ParseMachine.complete_flag = _complete_flag  # type: ignore[method-assign, assignment]
    ParseMachine.see_positional_arg = _see_positional  # type: ignore[method-assign, assignment]
    ParseMachine.handle = _handle  # type: ignore[method-assign, assignment]
    ParseMachine.error = _error  # type: ignore[method-assign, assignment]
    Program.parse_cleanup = _help_of_what_exists  # type: ignore[method-assign, assignment]


def _complete(machine: ParseMachine) -> None:
    context = machine.context
    missing = context.missing_positional_args if context else []
    for argument in missing:
        if (context.name, argument.name) not in _MAY_BE_MISSING:
            name = str(argument.name)
            _error(machine, f"{context.name} needs a {name}: `{context.name} {name.upper()}`")
        argument.set_value("", cast=False)
    _complete_context(machine)


def _complete_flag(machine: ParseMachine) -> None:
    flag = machine.flag
    if not (flag and flag.takes_value and flag.raw_value is None):
        return
    if not flag.optional:
        _error(machine, f"--{flag.name} needs a value")
    flag.set_value(True, cast=False)  # --list and --help of invoke's own: without a value they are switches


def _handle(machine: ParseMachine, token: str) -> None:
    """What is wrong with a word is said here, where it is known; the rest is invoke's."""
    if not machine.ignore_unknown:
        flag = machine.context.flags.get(token)
        if flag is not None and flag.takes_value and not flag.optional and _has_value(flag):
            _twice(machine, token, flag.name)
        if flag is None and _means_nothing(machine, token):
            _unknown(machine, token)
    _handle_token(machine, token)


def _has_value(flag: Any) -> bool:
    return flag.kind is not list and flag.raw_value is not None


def _twice(machine: ParseMachine, token: str, name: str) -> NoReturn:
    several = f"; several go with commas: {_SEVERAL[name]}" if name in _SEVERAL else ""
    _error(machine, f"{machine.context.name} was given {token} twice{several}")


def _means_nothing(machine: ParseMachine, token: str) -> bool:
    """Whether invoke would only say that it has no idea."""
    context, initial = machine.context, machine.initial
    taken = machine.waiting_for_flag_value or context.missing_positional_args
    return not (taken or token in context.inverse_flags or token in machine.contexts or token in initial.flags)


def _unknown(machine: ParseMachine, token: str) -> NoReturn:
    context = machine.context
    if token.startswith("-"):
        valid = [name[2:] for name in context.flags if name.startswith("--")]
        where = f"{context.name} has" if context.name else "there is"
        _error(machine, f"{where} no flag {token}{_near(token.lstrip('-'), valid, '--')}")
    if not context.name:
        _error(machine, f"there is no command {token!r}{_near(token, machine.contexts)}")
    rows = f"; `--only {token}` picks rows by a part of their names" if "--only" in context.flags else ""
    _error(machine, f"{context.name}: {token!r} is one word too many{rows}")


def _see_positional(machine: ParseMachine, value: str) -> None:
    if value == "--help":  # invoke would take it for a label; with --help of a command, nothing else is needed
        machine.initial.flags[value].value = machine.context.name
        for argument in machine.context.missing_positional_args:
            argument.set_value("", cast=False)
        return
    if value.startswith("-") and value != "-":  # invoke would take a misspelt flag for a label; - is standard input
        _unknown(machine, value)
    _see_positional_arg(machine, value)


def _help_of_what_exists(program: Program) -> None:
    wanted = program.args.help.value
    if isinstance(wanted, str) and wanted not in program.parser.contexts:
        _fail(f"there is no command {wanted!r}{_near(wanted, program.parser.contexts)}")
    _clean_up(program)


def _near(name: str, valid: Iterable[str], dashes: str = "") -> str:
    """The end of a message about `name`. Stricter than for labels: these words are short, a wild guess irritates."""
    import difflib

    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; did you mean {dashes}{found[0]}?" if found else ""


def _error(_machine: ParseMachine, message: str) -> NoReturn:
    _fail(message)


def _fail(message: str) -> NoReturn:
    raise Exit(printable(f"ci-tasks: {message}\n{_HINT}"), code=EXIT_USAGE)
