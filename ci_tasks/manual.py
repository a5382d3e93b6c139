"""What `ci-tasks`, `--list` and `--help COMMAND` print: commands in groups, as a newcomer meets them.

Invoke lists tasks by the alphabet and has no hook for it, so three methods of its program are replaced, for the
commands of this process. Sub-collections and the other formats of `--list` stay invoke's.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from invoke.program import Program
from invoke.util import helpline

Groups = Mapping[str, Sequence[str]]

_OPTIONS = (
    ("--help [COMMAND]", "the flags of a command, with examples"),
    ("--list", "the commands alone"),
    ("--print-completion-script SHELL", "what makes bash, zsh or fish complete our words"),
    ("--version", "which version this is"),
)
_list_flat = Program.list_flat
_print_help = Program.print_help


def install(groups: Groups) -> None:
    """Make invoke print the commands as `groups` has them: heading → names. A command in no group comes last."""

    def list_flat(program: Program) -> None:
        if program.list_root:
            _list_flat(program)
        else:
            _print_groups(program, groups)

    def print_help(program: Program) -> None:
        if program.namespace is None:  # bare `invoke --help`: no commands are known yet
            _print_help(program)
            return
        print(f"Usage: {program.binary} COMMAND [FLAGS]\n")
        _print_groups(program, groups)
        print("Options:\n")
        program.print_columns(_OPTIONS)

    Program.list_flat = list_flat  # type: ignore[method-assign, assignment]
    Program.print_help = print_help  # type: ignore[method-assign, assignment]
    Program.print_task_help = _print_task_help  # type: ignore[method-assign, assignment]


def _print_groups(program: Program, groups: Groups) -> None:
    tasks = program.scoped_collection.tasks
    grouped = {name for names in groups.values() for name in names}
    others = [name for name in sorted(tasks) if name not in grouped]
    width = max(map(len, tasks))
    for heading, names in {**groups, "Others": others}.items():
        # One width for all groups: the columns of the second begin where those of the first do.
        pairs = [(name.ljust(width), helpline(tasks[name])) for name in names if name in tasks]
        if pairs:
            print(f"{heading}:\n")
            program.print_columns(pairs)


def _print_task_help(program: Program, name: str) -> None:
    context = program.parser.contexts[name]
    words = "".join(f" {argument.name.upper()}" for argument in context.positional_args)
    print(f"Usage: {program.binary} {name}{words} [FLAGS]\n")
    for line in (inspect.getdoc(program.collection[name]) or "").splitlines():
        print(f"  {line}".rstrip())
    print("\nOptions:\n")
    program.print_columns(context.help_tuples())
